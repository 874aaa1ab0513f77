document.addEventListener("DOMContentLoaded", () =>
  document.querySelectorAll(".math").forEach((formula) => renderMathInElement(formula, {
    delimiters: [{left: "\\(", right: "\\)", display: false}, {left: "\\[", right: "\\]", display: true}],
    throwOnError: false})));
