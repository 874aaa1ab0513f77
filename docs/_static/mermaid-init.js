// Draw the diagrams in the colours of the page, and again when the reader switches between light and dark.
const diagrams = [...document.querySelectorAll("pre.mermaid")].map((element) => [element, element.textContent]);
const dark = () => document.body.dataset.theme === "dark" ||
  (document.body.dataset.theme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
const draw = () => {
  mermaid.initialize({startOnLoad: false, theme: dark() ? "dark" : "default"});
  diagrams.forEach(([element, source]) => { element.textContent = source; element.removeAttribute("data-processed"); });
  mermaid.run({nodes: diagrams.map(([element]) => element)});
};
draw();
new MutationObserver(draw).observe(document.body, {attributeFilter: ["data-theme"]});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
