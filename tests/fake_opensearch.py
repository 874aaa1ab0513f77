"""A strict OpenSearch for tests, after the sources of 3.9: it refuses what they refuse, in their words, and scores as
Lucene does.

Not modelled: merging and its thresholds, relevance of analysers (words are cut at spaces, BM25 with k1 1.2 and b 0.75),
and the clusters that a seismic segment skips (`heap_factor`): its scores are those of a segment that skips none.
Classes named below without a package are in modules/mapper-extras and server of opensearch-project/OpenSearch; those
of `neuralsearch` in opensearch-project/neural-search.
"""
import base64, json, re, ssl, threading, uuid
from collections import Counter, defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
import numpy as np

ANALYSERS = {'standard', 'simple', 'whitespace', 'keyword', 'cjk'}
MOST_CLAUSES, MOST_HITS, MOST_ID = 1024, 10_000, 512
FOLD = 32_768  # SparseConstants.MODULUS_FOR_SHORT
POSITIVE = float, lambda value: value > 0, 'a positive float'
SEISMIC = {  # parameter: type, whether a value is allowed, the allowed values in words
    'n_postings': (int, lambda value: value > 0, 'a positive integer'),
    'cluster_ratio': (float, lambda value: 0 < value < 1, 'in (0, 1)'),
    'summary_prune_ratio': (float, lambda value: 0 < value <= 1, 'in (0, 1]'),
    'approximate_threshold': (int, lambda value: value >= 0, 'a non-Negative integer'),
    'quantization_ceiling_ingest': POSITIVE, 'quantization_ceiling_search': POSITIVE}
DEFAULTS = {'quantization_ceiling_ingest': 3.0, 'quantization_ceiling_search': 16.0, 'approximate_threshold': 1_000_000}
FUNCTIONS = {'log': {'scaling_factor'}, 'saturation': set(), 'sigmoid': {'pivot', 'exponent'}, 'linear': set()}
EVERYTHING = dict(match_all={})


class Refusal(Exception):
    "An error of the server: status, type, reason and its cause."
    def __init__(self, status: int, type: str, reason: str, **more):
        super().__init__(reason)
        self.status, self.error = status, dict(type=type, reason=reason, **more)

    def body(self) -> dict: return dict(error=dict(root_cause=[self.error], **self.error), status=self.status)


def illegal(reason: str) -> Refusal: return Refusal(400, 'illegal_argument_exception', reason)
def unparsed(reason: str) -> Refusal: return Refusal(400, 'parsing_exception', reason, line=1, col=1)
def unmapped(reason: str) -> Refusal: return Refusal(400, 'mapper_parsing_exception', reason)
def unknown_field(reason: str) -> Refusal: return Refusal(400, 'x_content_parse_exception', reason)


def check_keys(given, known, error) -> None: # error: from a key to its refusal
    for key in given:
        if key not in known: raise error(key)


def no_repeats(pairs: list) -> dict:
    "A JSON object; a name twice is refused (XContentParser, strict duplicate detection)."
    for name, count in Counter(name for name, _ in pairs).items():
        if count > 1: raise ValueError(f"Duplicate field '{name}'")
    return dict(pairs)


def no_number(text: str):
    raise ValueError(f"Non-standard token '{text}': enable JsonParser.Feature.ALLOW_NON_NUMERIC_NUMBERS to allow")


def strict_json(text: bytes) -> object: return json.loads(text, object_pairs_hook=no_repeats, parse_constant=no_number)


def nine_bits(values):
    "What Lucene's FeatureField stores: the upper 17 bits of a float32, nine of them significant; the rest is cut off."
    return (np.asarray(values, np.float32).view(np.int32) >> 15 << 15).view(np.float32)


# Mappings

def check_name(name: str) -> None:
    "MetadataCreateIndexService.validateIndexOrAliasName."
    wrong = {
        'must be lowercase': name != name.lower(), "must not start with '_', '-', or '+'": name[:1] in '_-+',
        'must not contain the following characters [ , ", *, \\, <, |, ,, >, /, ?]': re.search(r'[ "*\\<|,>/?]', name)}
    for reason, applies in wrong.items():
        if applies:
            reason = f'Invalid index name [{name}], {reason}'
            raise Refusal(400, 'invalid_index_name_exception', reason, index=name)


def seismic_fault(name: str, value) -> str: # '' for none
    if name not in SEISMIC: return f"Unknown parameter '{name}' found"
    kind, is_allowed, allowed = SEISMIC[name]
    try: return '' if is_allowed(kind(str(value))) else f'Parameter [{name}] must be {allowed}'
    except ValueError: return f'Parameter [{name}] must be of java.lang.{kind.__name__.title()} type'


def check_seismic(parameters: dict) -> None:
    "neuralsearch Seismic.validateMethod: every parameter known, of its type and in its range."
    faults = [fault for name, value in parameters.items() if (fault := seismic_fault(name, value))]
    reasons = ''.join(f'{n}: {fault};' for n, fault in enumerate(faults, 1))
    if faults: raise unmapped(f'Validation Failed: {reasons}')


def check_field(name: str, mapped: dict, server) -> None:
    """TypeParsers and ParametrizedFieldMapper: known types and parameters; neuralsearch SparseVectorFieldMapper:
    `method` is required and is seismic."""
    kind, given = mapped.get('type', 'object'), {key: value for key, value in mapped.items() if key != 'type'}
    known = {'rank_features': {'meta'}, 'text': {'analyzer', 'search_analyzer', 'index', 'meta'}}
    if server.since(3, 3): known['sparse_vector'] = {'method'}
    if kind not in known: raise unmapped(f'No handler for type [{kind}] declared on field [{name}]')
    check_keys(given, known[kind],
               lambda key: unmapped(f'unknown parameter [{key}] on mapper [{name}] of type [{kind}]'))
    analyser = given.get('analyzer', 'standard')
    if analyser not in server.analysers: raise unmapped(f'analyzer [{analyser}] has not been configured in mappings')
    if kind != 'sparse_vector': return
    method = given.get('method')
    if method is None: raise unmapped('[sparse_vector] requires [method] parameter')
    if method.get('name') != 'seismic': raise unmapped(f"[method.name]: {method.get('name')} is not supported")
    check_seismic(method.get('parameters', {}))


def check_body(body: dict, server) -> None:
    "CreateIndexRequest, IndexScopedSettings and RootObjectMapper: nothing unknown."
    check_keys(body, ('settings', 'mappings', 'aliases'),
               lambda key: Refusal(400, 'parse_exception', f'unknown key [{key}] for create index'))
    settings, mappings = body.get('settings', {}), body.get('mappings', {})
    known = ('number_of_shards', 'number_of_replicas', 'refresh_interval', *(['sparse'] if server.since(3, 3) else []))
    check_keys(settings.get('index', settings), known, lambda key: illegal(
        f'unknown setting [index.{key}] please check that any required plugins are installed, or check the breaking'
        ' changes documentation for removed settings'))
    check_keys(mappings, ('dynamic', '_meta', 'properties', '_source'), lambda key: unmapped(
        f'Root mapping definition has unsupported parameters:  [{key} : {mappings[key]}]'))
    for name, mapped in mappings.get('properties', {}).items(): check_field(name, mapped, server)


# Documents

def number(value, kind: str) -> float:
    """XContentParser.floatValue(coerce) and FeatureField.setFeatureValue: a finite, positive, normal float; text that
    says one will do."""
    token = {list: 'START_ARRAY', dict: 'START_OBJECT', bool: 'VALUE_BOOLEAN'}.get(type(value))
    if token:
        raise illegal(f'[{kind}] fields take hashes that map a feature to a strictly positive float, but got'
                      f' unexpected token {token}')
    try: return float(value)
    except ValueError: raise illegal(f'For input string: "{value}"') from None


def feature(name: str, field: str, value: float) -> float:
    "Lucene FeatureField.setFeatureValue."
    with np.errstate(over='ignore'): single = np.float32(value)
    place = f'got: {single} for feature {name} on field {field}'
    if not np.isfinite(single): raise illegal(f'featureValue must be finite, {place}')
    if single < np.finfo(np.float32).tiny:
        raise illegal(f'featureValue must be a positive normal float, {place} which is less than the minimum positive'
                      ' normal float: 1.17549435E-38')
    return float(single)


def check_feature_name(name: str, kind: str) -> None:
    """Elasticsearch's RankFeaturesFieldMapper refuses dots (elastic/elasticsearch#93756). OpenSearch's has no such
    check, but its RankFeatureQueryBuilder cuts a field at its last dot, so that such a feature, or one without a name,
    is stored and never found. Refused here, at the first of the two."""
    if kind == 'rank_features' and '.' in name:
        raise illegal(f'[rank_features] fields do not support dots in feature names but found [{name}]')
    if not name: raise illegal('field name cannot be an empty string')


def check_integer(name: str) -> None:
    "neuralsearch SparseVectorFieldMapper.parseCreateField: terms of `sparse_vector` are integers, not negative."
    if not re.fullmatch(r'[+-]?\d+', name): raise illegal('[sparse_vector] fields should be valid integer')
    if int(name) < 0: raise illegal('[sparse_vector] fields should be text of non-negative integer')


def features(field: str, kind: str, given) -> dict:
    "RankFeaturesFieldMapper.parse and neuralsearch SparseVectorFieldMapper.parseCreateField: objects of single values."
    values = {}
    for part in given if isinstance(given, list) else [given]:
        if not isinstance(part, dict):
            token = 'STRING' if isinstance(part, str) else 'NUMBER'
            raise illegal(f'[{kind}] fields must be json objects, expected a START_OBJECT but got: VALUE_{token}')
        for name, value in part.items():
            check_feature_name(name, kind)
            if value is None: continue
            if name in values:
                what = 'rank feature' if kind == 'rank_features' else 'key'
                raise illegal(f'[{kind}] fields do not support indexing multiple values for the same {what}'
                              f' [{field}.{name}] in the same document')
            values[name] = feature(name, field, number(value, kind))
            if kind == 'sparse_vector': check_integer(name)
    return values


def analysed(value) -> list: # words
    "TextFieldMapper; the analyser cuts at spaces."
    if isinstance(value, (dict, list)):
        raise illegal(f"Can't get text on a START_{'OBJECT' if isinstance(value, dict) else 'ARRAY'}")
    return str(value).lower().split()


def failed_to_parse(cause: dict) -> Refusal:
    return Refusal(400, 'mapper_parsing_exception', 'failed to parse', caused_by=cause)


def document(source: bytes, mappings: dict) -> dict: # field: features, or words
    """DocumentParser: the fields of a document; unknown ones are refused under `dynamic: strict`, the cause stands in
    `caused_by`."""
    try: body = strict_json(source)
    except ValueError as error: raise failed_to_parse(dict(type='json_parse_exception', reason=str(error))) from None
    fields = {}
    for name, value in body.items():
        mapped = mappings.get('properties', {}).get(name)
        if mapped is None and mappings.get('dynamic') == 'strict':
            reason = f'mapping set to strict, dynamic introduction of [{name}] within [_doc] is not allowed'
            raise Refusal(400, 'strict_dynamic_mapping_exception', reason)
        if mapped is None: continue
        try: fields[name] = analysed(value) if mapped['type'] == 'text' else features(name, mapped['type'], value)
        except Refusal as error: raise failed_to_parse(error.error) from None
    return fields


@dataclass
class StoredIndex:
    "An index: what was written, and what searches see since the last refresh."
    name: str
    body: dict
    uuid: str = field(default_factory=lambda: uuid.uuid4().hex[:22])
    written: dict = field(default_factory=dict)   # id: fields
    ids: list = field(default_factory=list)       # what searches see
    terms: dict = field(default_factory=dict)     # field: {term: (documents, float32 values)}

    @property
    def mappings(self) -> dict: return self.body.get('mappings', {})

    def mapped(self, field: str) -> dict: return self.mappings.get('properties', {}).get(field, {})
    def kind(self, field: str) -> str: return self.mapped(field).get('type', '')

    def refresh(self) -> None:
        self.ids, postings = list(self.written), defaultdict(lambda: defaultdict(list))
        for place, fields in enumerate(self.written.values()):
            for name, value in fields.items():
                for term, weight in (Counter(value) if isinstance(value, list) else value).items():
                    postings[name][term].append((place, weight))
        def arrays(rows): return np.array([p for p, _ in rows]), np.array([w for _, w in rows], np.float32)
        self.terms = {name: {term: arrays(rows) for term, rows in terms.items()} for name, terms in postings.items()}

    def postings(self, field: str, term: str) -> tuple: # documents, values as Lucene stores them
        places, values = self.terms.get(field, {}).get(term, (np.empty(0, np.int64), np.empty(0, np.float32)))
        return places, nine_bits(values)


# Queries: [N] scores, nan where a document does not match

def summed(parts: list, size: int) -> np.ndarray:
    matrix = np.array([np.full(size, np.nan), *parts])
    return np.where(np.isnan(matrix).all(0), np.nan, np.nansum(matrix, 0))


def scored(index: StoredIndex, field: str, term: str, function) -> np.ndarray:
    places, values = index.postings(field, term)
    scores = np.full(len(index.ids), np.nan)
    scores[places] = function(values)
    return scores


def is_best(scores: np.ndarray, number: int) -> np.ndarray: # [N] bool
    best = np.argsort(-np.nan_to_num(scores, nan=-1), kind='stable')[:number]
    return np.isin(np.arange(len(scores)), best)


def weight(value: float) -> float:
    "Lucene FeatureField.newLinearQuery: a weight in (0, 64]."
    if not 0 < value <= 64: raise illegal(f'weight must be in (0, 64.0], got: {value}')
    return np.float32(value)


def mean_pivot(values: np.ndarray) -> float:
    "FeatureField.computePivotFeatureValue: of the mean of the frequencies, which are the floats' upper bits."
    if not len(values): return 1.0
    return float(np.array(int((values.view(np.int32) >> 15).mean()) << 15, np.int32).view(np.float32))


def score_function(given: dict, index: StoredIndex, field: str, term: str):
    """RankFeatureQueryBuilder.ScoreFunction and Lucene FeatureField: saturation unless the query names another, its
    pivot the mean of the values in the index."""
    name = next((name for name in FUNCTIONS if name in given), 'saturation')
    how, needed = given.get(name, {}), FUNCTIONS[name]
    known = needed | ({'pivot'} if name == 'saturation' else set())
    check_keys(how, known, lambda key: unknown_field(f'[{name}] unknown field [{key}]'))
    if needed - set(how): raise illegal(f'Required [{", ".join(sorted(needed - set(how)))}]')
    if name == 'linear': return lambda s: s
    if name == 'log': return lambda s: np.log(how['scaling_factor'] + s)
    exponent = how.get('exponent', 1)
    pivot = how['pivot'] if how.get('pivot') is not None else mean_pivot(index.postings(field, term)[1])
    return lambda s: 1 - pivot ** exponent / (s ** exponent + pivot ** exponent)


def rank_feature(given: dict, index: StoredIndex) -> np.ndarray:
    """RankFeatureQueryBuilder: one function at most; a field that is unmapped, or a feature of `sparse_vector`, matches
    nothing and is no error."""
    check_keys(given, {'field', 'boost', '_name', *FUNCTIONS},
               lambda key: unknown_field(f'[feature] unknown field [{key}]'))
    if 'field' not in given: raise illegal('Required [field]')
    if len(FUNCTIONS.keys() & given.keys()) > 1:
        raise illegal('Can only specify one of [log], [saturation], [sigmoid] and [linear]')
    boost, kind = given.get('boost', 1.0), index.kind(given['field'])
    if boost < 0:
        raise illegal('negative [boost] are not allowed in [rank_feature], use a value between 0 and 1 to deboost')
    if kind:
        raise illegal('[rank_feature] query only works on [rank_feature] fields and features of [rank_features] fields,'
                      f' not [{kind}]')
    field, _, term = given['field'].rpartition('.')
    if index.kind(field) != 'rank_features': return np.full(len(index.ids), np.nan)
    function = score_function(given, index, field, term)
    return scored(index, field, term, lambda s: np.float32(boost) * function(s))


def query_weights(tokens: dict, integers: bool) -> dict:
    """XContentParser.map(floatValue); neuralsearch SparseAnnQueryBuilder.preprocessQueryTokens for
    `method_parameters`."""
    for name, value in tokens.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise unparsed(f'Failed to parse object: expecting token of type [VALUE_NUMBER] but found [{value}]')
        if integers and not re.fullmatch(r'-?\d+', name): raise illegal('Query tokens should be valid integer')
        if integers and int(name) < 0: raise illegal('Query tokens should be non-negative integer!')
    return {name: weight(value) for name, value in tokens.items()}


def check_method(method: dict) -> None:
    check_keys(method, ('top_n', 'k', 'heap_factor', 'filter'),
               lambda key: unparsed(f'[neural_sparse] unknown field [{key}]'))
    for key, value in method.items():
        kind = 'float' if key == 'heap_factor' else 'integer'
        if key != 'filter' and value <= 0: raise unparsed(f'[neural_sparse] {key} must be a positive {kind}')


def read_tokens(given: dict, server) -> tuple: # field, tokens, method_parameters
    """neuralsearch NeuralSparseQueryBuilder.fromXContent: one field, known parameters, tokens or a text (which needs a
    model, so is refused here)."""
    if len(given) != 1:
        fields = '] and ['.join(given)
        raise unparsed(f"[neural_sparse] query doesn't support multiple fields, found [{fields}]")
    (field, how), = given.items()
    known = {'query_tokens', 'query_text', 'model_id', 'analyzer', 'max_token_score', 'boost', '_name'}
    if server.since(3, 3): known.add('method_parameters')
    check_keys(how, known, lambda key: unparsed(
        f'[neural_sparse] unknown token [START_OBJECT] after [{key}]' if isinstance(how[key], dict)
        else f'[neural_sparse] query does not support [{key}] field'))
    if 'query_tokens' not in how:
        raise illegal('query_text and model_id cannot be null' if 'query_text' in how else
                      'either query_text field or query_tokens field must be provided for [neural_sparse] query')
    check_method(how.get('method_parameters') or {})
    return field, how['query_tokens'], how.get('method_parameters')


def neural_sparse(given: dict, index: StoredIndex, server, chosen=lambda tokens: tokens) -> np.ndarray:
    """neuralsearch NeuralSparseQueryBuilder.doToQuery: linear features of `rank_features`, and of `sparse_vector` but
    for large segments searched with `method_parameters`."""
    field, tokens, method = read_tokens(given, server)
    if index.kind(field) not in ('rank_features', 'sparse_vector'):
        raise illegal('[neural_sparse] query only works on [rank_features] fields')
    tokens = chosen(query_weights(tokens, method is not None))
    if len(tokens) > MOST_CLAUSES: raise illegal(f'maxClauseCount is set to {MOST_CLAUSES}')
    parameters = DEFAULTS | index.mapped(field).get('method', {}).get('parameters', {})
    is_large = index.kind(field) == 'sparse_vector' and len(index.ids) >= parameters['approximate_threshold']
    if method is not None and is_large: return seismic(index, field, tokens, parameters, method)
    return summed([scored(index, field, term, lambda s, w=w: w * s) for term, w in tokens.items()], len(index.ids))


def quantized(values: np.ndarray, ceiling: float) -> np.ndarray:
    return np.round(np.minimum(values, ceiling) * 255 / ceiling)


def seismic(index: StoredIndex, field: str, tokens: dict, parameters: dict, method: dict) -> np.ndarray:
    """neuralsearch SparseVector and ByteQuantizer: ids folded into 15 bits, weights into bytes below a ceiling; only
    documents with one of the `top_n` heaviest terms."""
    up, down = parameters['quantization_ceiling_ingest'], parameters['quantization_ceiling_search']
    query, dense = defaultdict(float), defaultdict(lambda: np.zeros(len(index.ids)))
    for term, value in tokens.items(): query[int(term) % FOLD] = max(query[int(term) % FOLD], value)
    for term, (places, values) in index.terms.get(field, {}).items():
        column = int(term) % FOLD
        if column in query: dense[column][places] = np.maximum(dense[column][places], quantized(values, up))
    heaviest = sorted(query, key=query.get, reverse=True)[:method.get('top_n', 10)]
    zeros = np.zeros(len(index.ids))
    scores = sum((quantized(value, down) * dense[column] for column, value in query.items()), zeros)
    has_one = sum((dense[column] > 0 for column in heaviest), zeros) > 0
    scores = np.where(has_one & (scores > 0), scores * up * down / 255 ** 2, np.nan)
    return np.where(is_best(scores, method.get('k', 10)), scores, np.nan)


def match(given: dict, index: StoredIndex) -> np.ndarray:
    "MatchQueryBuilder on a text field; TextFieldMapper refuses one that is not indexed."
    (field, how), = given.items()
    how = how if isinstance(how, dict) else dict(query=how)
    if index.mapped(field).get('index') is False:
        raise illegal(f'Cannot search on field [{field}] since it is not indexed.')
    length = np.zeros(len(index.ids))
    for places, counts in index.terms.get(field, {}).values(): length[places] += counts
    def bm25(term):
        places, _ = index.postings(field, term)
        idf = np.log1p((len(index.ids) - len(places) + 0.5) / (len(places) + 0.5))
        norm = 1.2 * (0.25 + 0.75 * length[places] / max(1, length.mean()))
        return scored(index, field, term, lambda tf: how.get('boost', 1.0) * idf * tf / (tf + norm))
    return summed([bm25(term) for term in set(analysed(how['query']))], len(index.ids))


def boolean(given: dict, index: StoredIndex, server, chosen) -> np.ndarray:
    "BoolQueryBuilder: without a clause it matches everything; with too many it is refused."
    check_keys(given, ('should', 'must', 'filter', 'boost'),
               lambda key: unparsed(f'[bool] query does not support [{key}]'))
    clauses = {kind: part if isinstance(part, list) else [part] for kind, part in given.items() if kind != 'boost'}
    if sum(map(len, clauses.values())) > MOST_CLAUSES: raise illegal(f'maxClauseCount is set to {MOST_CLAUSES}')
    if not any(clauses.values()): return np.ones(len(index.ids))
    parts = {kind: [query_scores(part, index, server, chosen) for part in parts] for kind, parts in clauses.items()}
    required = [~np.isnan(part) for kind in ('must', 'filter') for part in parts.get(kind, [])]
    total = summed([*parts.get('must', []), *parts.get('should', [])], len(index.ids))
    if not required: return total * given.get('boost', 1.0)
    return np.where(np.all(required, axis=0), np.nan_to_num(total), np.nan)


def query_scores(query: dict, index: StoredIndex, server, chosen=lambda tokens: tokens) -> np.ndarray:
    "AbstractQueryBuilder.parseInnerQueryBuilder: one query of a known name."
    if len(query) != 1:
        name = next(iter(query), '')
        raise unparsed(f'[{name}] malformed query, expected [END_OBJECT] but found [FIELD_NAME]')
    (name, given), = query.items()
    if name == 'match_all': return np.full(len(index.ids), given.get('boost', 1.0))
    if name == 'rank_feature': return rank_feature(given, index)
    if name == 'match': return match(given, index)
    if name == 'bool': return boolean(given, index, server, chosen)
    if name == 'neural_sparse' and server.has_neural: return neural_sparse(given, index, server, chosen)
    cause = dict(type='named_object_not_found_exception', reason=f'[1:1] unknown field [{name}]')
    raise Refusal(400, 'parsing_exception', f'unknown query [{name}]', caused_by=cause)


def two_phase_parameters(pipeline: dict, server) -> dict | None: # prune_ratio, expansion_rate, max_window_size
    "neuralsearch NeuralSparseTwoPhaseProcessor.Factory, in a temporary pipeline of one request."
    for processor in pipeline.get('request_processors', []):
        (name, given), = processor.items()
        if name != 'neural_sparse_two_phase_processor' or not server.since(2, 15):
            raise illegal(f'Invalid processor type {name}')
        how = dict(prune_ratio=0.4, expansion_rate=5.0, max_window_size=10_000) | given.get('two_phase_parameter', {})
        ratio, rate, window = how['prune_ratio'], how['expansion_rate'], how['max_window_size']
        if not 0 <= ratio < 1:
            raise illegal(f'Illegal prune_ratio {ratio:f} for prune_type: max_ratio. prune_ratio should be in the range'
                          ' [0, 1).')
        if rate < 1: raise illegal(f'The two_phase_parameter.expansion_rate must >= 1.0. Received: {rate:f}')
        if window < 50: raise illegal(f'The two_phase_parameter.max_window_size must >= 50. Received: \n{window}')
        return how


def two_phase_scores(query: dict, index: StoredIndex, server, how: dict, size: int) -> np.ndarray:
    """neuralsearch NeuralSparseTwoPhaseProcessor.processRequest and PruneUtils.pruneByMaxRatio: the light terms count
    for the best of the heavy ones only."""
    if 'sparse_vector' in map(index.kind, index.mappings['properties']):
        raise illegal('Two phase search processor is not compatible with [seismic] field for now')
    window, most = int(size * how['expansion_rate']), how['max_window_size']
    if window > most:
        raise illegal(f'The two-phase window size of neural_sparse_two_phase_processor should be [0,{most}], but get'
                      f' the value of {window}')
    def scores(are_heavy):
        def chosen(tokens):
            limit = how['prune_ratio'] * max(tokens.values(), default=0)
            return {term: weight for term, weight in tokens.items() if (weight >= limit) == are_heavy}
        return query_scores(query, index, server, chosen)
    heavy, light = scores(True), scores(False)
    others = np.nan if min(window, len(heavy)) < size else heavy
    return np.where(is_best(heavy, window), heavy + np.nan_to_num(light), others)


# The server

@dataclass
class Fault:
    "What goes wrong with one request: rejected, breaker, large, unavailable, slow (until given up), drop, half."
    kind: str


def rejected(size: int) -> Refusal:
    "IndexingPressure and OpenSearchRejectedExecutionException, in the words of a cluster under load."
    return Refusal(429, 'rejected_execution_exception', 'rejected execution of coordinating operation ['
                   'coordinating_and_primary_bytes=107000000, replica_bytes=0, all_bytes=107000000,'
                   f' coordinating_operation_bytes={size}, max_coordinating_and_primary_bytes=107374182]')


def out_of_memory(size: int) -> Refusal:
    "HierarchyCircuitBreakerService.checkParentLimit and CircuitBreakingException."
    limit = 1020054732
    return Refusal(429, 'circuit_breaking_exception',
                   f'[parent] Data too large, data for [<http_request>] would be [{size + limit}/972.7mb], which is'
                   f' larger than the limit of [{limit}/972.7mb]',
                   bytes_wanted=size + limit, bytes_limit=limit, durability='TRANSIENT')


class Fake(ThreadingHTTPServer):
    """State of the fake and its faults: `faults` are used up in order by requests to the endpoint that they name,
    `always` stays."""
    daemon_threads, block_on_close = True, False

    def __init__(self, version: str = '3.9.0', plugins=('opensearch-neural-search',), auth: tuple | None = None,
                 largest: int = 100 << 20, certificate: tuple | None = None):
        super().__init__(('127.0.0.1', 0), Handler)
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.url = f'{"https" if certificate else "http"}://127.0.0.1:{self.server_port}'
        self.version, self.plugins, self.auth, self.largest = version, set(plugins), auth, largest
        self.indices, self.faults, self.always, self.requests = {}, defaultdict(list), {}, []
        self.closed, self.lock = False, threading.RLock()
        self.scrolls = {}  # id of a scroll: index, shards, the pages that are still to come
        self.has_neural = 'opensearch-neural-search' in self.plugins
        self.analysers = ANALYSERS | ({'nori'} if 'analysis-nori' in self.plugins else set())

    def since(self, *version: int) -> bool: # whether the neural-search plugin has what this version added
        return self.has_neural and tuple(map(int, self.version.split('.')[:2])) >= version

    def index(self, name: str) -> StoredIndex:
        if name in self.indices: return self.indices[name]
        raise Refusal(404, 'index_not_found_exception', f'no such index [{name}]', index=name)

    def next_fault(self, endpoint: str) -> Fault | None:
        return self.faults[endpoint].pop(0) if self.faults[endpoint] else self.always.get(endpoint)

    def handle_error(self, request, client_address): pass  # a client that was killed or gave up


@contextmanager
def serving(**settings):
    "A fake on a free port of this machine."
    server = Fake(**settings)
    threading.Thread(target=server.serve_forever, kwargs=dict(poll_interval=0.01), daemon=True).start()
    try: yield server
    finally:
        server.closed = True
        server.shutdown()
        server.server_close()


def invalid_request(reason: str) -> Refusal:
    return Refusal(400, 'action_request_validation_exception', f'Validation Failed: 1: {reason};')


def read_action(line: bytes, place: int) -> tuple: # index, create or delete; _index, _id, routing
    wrong = f'Malformed action/metadata line [{place}], expected'
    try: head = strict_json(line)
    except ValueError as error: raise Refusal(400, 'json_parse_exception', str(error)) from None
    if not isinstance(head, dict): raise illegal(f'{wrong} START_OBJECT but found [VALUE]')
    (kind, meta), = head.items() if len(head) == 1 else [('', {})]
    if kind not in ('index', 'create', 'delete'):
        raise illegal(f'{wrong} field [create], [delete], [index] or [update] but found [{kind}]')
    check_keys(meta, ('_index', '_id', 'routing'), lambda key: illegal(
        f'Action/metadata line [{place}] contains an unknown parameter [{key}]'))
    return kind, meta


def bulk_actions(text: bytes, name: str) -> list: # [(action, index, id, source)]
    """BulkRequestParser and BulkRequest.validate: lines in pairs, ended by a newline; an id that is too long fails the
    whole request."""
    if not text.endswith(b'\n'): raise illegal('The bulk request must be terminated by a newline [\\n]')
    lines, actions = enumerate(text.split(b'\n')[:-1], 1), []
    for place, line in lines:
        kind, meta = read_action(line, place)
        id, source = meta.get('_id', uuid.uuid4().hex[:20]), b'' if kind == 'delete' else next(lines, (0, b''))[1]
        if kind != 'delete' and not source: raise invalid_request('no requests added')
        if (size := len(id.encode())) > MOST_ID:
            raise invalid_request(f'id is too long, must be no longer than {MOST_ID} bytes but was: {size}')
        if not id: raise illegal('if _id is specified it must not be empty')
        actions.append((kind, meta.get('_index', name), id, source))
    if not actions: raise invalid_request('no requests added')
    return actions


def write_document(server: Fake, kind: str, name: str, id: str, source: bytes) -> dict:
    "TransportShardBulkAction: each document is stored or refused by itself."
    try:
        index = server.index(name)
        exists = id in index.written
        if kind == 'delete':
            index.written.pop(id, None)
            result, status = ('deleted', 200) if exists else ('not_found', 404)
        else:
            index.written[id] = document(source, index.mappings)
            result, status = ('updated', 200) if exists else ('created', 201)
        return dict(_index=name, _id=id, result=result, status=status)
    except Refusal as error: return dict(_index=name, _id=id, status=error.status, error=error.error)


SHARDS = dict(total=1, successful=1, skipped=0, failed=0)


class Handler(BaseHTTPRequestHandler):
    "RestController: the addresses, the types of content, and the faults."
    protocol_version, wbufsize, disable_nagle_algorithm = 'HTTP/1.1', 1 << 16, True

    def log_message(self, *_): pass

    def answer(self, status: int, body=None) -> None:
        text = b'' if body is None else json.dumps(body, ensure_ascii=False).encode()
        self.send_response(status)
        self.send_header('Content-Type', 'application/json; charset=UTF-8')
        self.send_header('Content-Length', str(len(text)))
        self.end_headers()
        if self.command != 'HEAD': self.wfile.write(text)

    def route(self) -> None:
        if self.server.closed:
            self.close_connection = True
            return
        self.text = self.rfile.read(int(self.headers.get('Content-Length') or 0))
        parts = urlsplit(self.path)
        self.parameters = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        self.parts = [unquote(part) for part in parts.path.strip('/').split('/') if part]
        endpoint = next((part for part in reversed(self.parts) if part[0] == '_'), self.command)
        try: status, body = self.guarded(endpoint)
        except Refusal as error: status, body = error.status, error.body()
        if status: self.answer(status, body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = route

    def guarded(self, endpoint: str) -> tuple: # status, body
        "Credentials, type of content, size, and the next fault."
        server, kind = self.server, (self.headers.get('Content-Type') or '').split(';')[0]
        credentials = base64.b64encode(':'.join(server.auth or ()).encode()).decode()
        if server.auth and self.headers.get('Authorization') != f'Basic {credentials}':
            return 401, dict(error='Unauthorized', status=401)
        if self.text and kind not in ('application/json', 'application/x-ndjson'):
            return 406, dict(error=f'Content-Type header [{kind}] is not supported', status=406)
        if len(self.text) > server.largest: return 413, None
        with server.lock:
            fault = server.next_fault(endpoint)
            server.requests.append((self.command, '/'.join(self.parts), self.text, fault and fault.kind))
        return self.faulty(fault.kind, endpoint) if fault else self.handled(endpoint)

    def faulty(self, fault: str, endpoint: str) -> tuple:
        if fault == 'rejected': raise rejected(len(self.text))
        if fault == 'breaker': raise out_of_memory(len(self.text))
        if fault == 'unavailable': raise Refusal(503, 'cluster_manager_not_discovered_exception', None)
        if fault == 'large': return 413, None
        if fault == 'half': return self.bulk(half=True)
        if fault == 'slow': self.wait_for_the_end()
        result = self.handled(endpoint)
        if fault not in ('drop', 'slow'): return result
        self.close_connection = True
        return 0, None

    def wait_for_the_end(self) -> None:
        "Until the client hangs up: it sends nothing more."
        try: self.rfile.read(1)
        except OSError: pass

    def handled(self, endpoint: str) -> tuple:
        with self.server.lock:
            if not self.parts:
                version = dict(distribution='opensearch', number=self.server.version)
                return 200, dict(name='fake', cluster_name='fake', version=version,
                                 tagline='The OpenSearch Project: https://opensearch.org/')
            if self.parts[0] == '_nodes':
                plugins = [dict(name=name) for name in sorted(self.server.plugins)]
                return 200, dict(nodes=dict(fake=dict(version=self.server.version, plugins=plugins)))
            if endpoint == '_bulk': return self.bulk()
            if self.parts == ['_search', 'scroll']: return self.scroll()
            return self.whole_index() if len(self.parts) == 1 else self.inside_index(endpoint)

    def whole_index(self) -> tuple:
        name, indices = self.parts[0], self.server.indices
        if self.command == 'HEAD': return (200 if name in indices else 404), None
        if self.command == 'PUT': return self.create(name)
        index = self.server.index(name)
        if self.command == 'DELETE':
            del indices[name]
            return 200, dict(acknowledged=True)
        settings = dict(index=dict(uuid=index.uuid, **index.body.get('settings', {}).get('index', {})))
        return 200, {name: dict(aliases={}, mappings=index.mappings, settings=settings)}

    def create(self, name: str) -> tuple:
        check_name(name)
        if name in self.server.indices:
            reason = f'index [{name}/{self.server.indices[name].uuid}] already exists'
            raise Refusal(400, 'resource_already_exists_exception', reason, index=name)
        body = self.json()
        check_body(body, self.server)
        self.server.indices[name] = StoredIndex(name, body)
        return 200, dict(acknowledged=True, shards_acknowledged=True, index=name)

    def inside_index(self, endpoint: str) -> tuple:
        index = self.server.index(self.parts[0])
        if endpoint == '_search': return self.search(index)
        if endpoint == '_count': return 200, dict(count=len(index.ids), _shards=SHARDS)
        if endpoint == '_refresh': index.refresh()
        if endpoint in ('_refresh', '_flush'): return 200, dict(_shards=SHARDS)
        raise illegal(f'no handler found for uri [{self.path}] and method [{self.command}]')

    def json(self) -> dict:
        try: return strict_json(self.text) if self.text else {}
        except ValueError as error: raise Refusal(400, 'json_parse_exception', str(error)) from None

    def bulk(self, half: bool = False) -> tuple:
        items = []
        name = '' if self.parts[0] == '_bulk' else self.parts[0]
        for number, (kind, name, id, source) in enumerate(bulk_actions(self.text, name)):
            full = dict(_index=name, _id=id, status=429, error=rejected(len(source)).error)
            items.append({kind: full if half and number % 2 else write_document(self.server, kind, name, id, source)})
        errors = any('error' in result for item in items for result in item.values())
        return 200, dict(took=1, errors=errors, items=items)

    def begin_scroll(self, index: StoredIndex, size: int) -> tuple:
        """SearchScrollAsyncAction: what searches see now, a page a call, whatever is written meanwhile; for `match_all`
        alone."""
        if self.json().get('query', EVERYTHING) != EVERYTHING: raise illegal('the fake scrolls match_all only')
        if size > MOST_HITS:
            raise illegal(f'Batch size is too large, size must be less than or equal to: [{MOST_HITS}]'
                          f' but was [{size}].')
        pages = [index.ids[start:start + size] for start in range(0, len(index.ids), size)]
        name = uuid.uuid4().hex
        self.server.scrolls[name] = (index.name, pages)
        return self.next_page(name)

    def next_page(self, name: str) -> tuple:
        index, pages = self.server.scrolls[name]
        hits = [dict(_index=index, _id=id, _score=None) for id in (pages.pop(0) if pages else [])]
        return 200, dict(_scroll_id=name, took=1, timed_out=False, _shards=SHARDS, hits=dict(max_score=None, hits=hits))

    def scroll(self) -> tuple:
        "RestSearchScrollAction and RestClearScrollAction: the id stands in the body."
        name = self.json().get('scroll_id')
        if self.command == 'DELETE':
            for one in name: self.server.scrolls.pop(one, None)
            return 200, dict(succeeded=True, num_freed=len(name))
        if name in self.server.scrolls: return self.next_page(name)
        raise Refusal(404, 'search_context_missing_exception', f'No search context found for id [{name}]')

    def search(self, index: StoredIndex) -> tuple:
        """RestSearchAction and SearchService: known keys, a window of 10,000; what a shard refuses is answered with
        `search_phase_execution_exception`."""
        body = self.json()
        def unknown(key): return 'START_OBJECT' if isinstance(body[key], dict) else 'VALUE'
        check_keys(body, ('query', 'size', '_source', 'track_total_hits', 'search_pipeline', 'sort'),
                   lambda key: unparsed(f'Unknown key for a {unknown(key)} in [{key}].'))
        check_keys(self.parameters, ('allow_partial_search_results', 'search_pipeline', 'scroll', 'size', '_source'),
                   lambda key: illegal(f'request [/{index.name}/_search] contains unrecognized parameter: [{key}]'))
        size = int(self.parameters.get('size', body.get('size', 10)))
        sort = body.get('sort', '_doc')
        if sort != '_doc': raise illegal(f'No mapping found for [{sort}] in order to sort on')
        if 'scroll' in self.parameters: return self.begin_scroll(index, size)
        try: scores = self.scores(index, body, size)
        except Refusal as error:
            if error.error['type'] in ('parsing_exception', 'x_content_parse_exception'): raise
            return self.failed_shards(index, error)
        order = np.argsort(-np.nan_to_num(scores, nan=-np.inf), kind='stable')[:size]
        hits = [dict(_index=index.name, _id=index.ids[place], _score=float(np.float32(scores[place])))
                for place in order if not np.isnan(scores[place])]
        best = hits[0]['_score'] if hits else None
        return 200, dict(took=1, timed_out=False, _shards=SHARDS, hits=dict(max_score=best, hits=hits))

    def scores(self, index: StoredIndex, body: dict, size: int) -> np.ndarray:
        if size > MOST_HITS:
            raise illegal(f'Result window is too large, from + size must be less than or equal to: [{MOST_HITS}]'
                          f' but was [{size}].')
        how, query = two_phase_parameters(body.get('search_pipeline', {}), self.server), body.get('query', EVERYTHING)
        if how: return two_phase_scores(query, index, self.server, how, size)
        return query_scores(query, index, self.server)

    def failed_shards(self, index: StoredIndex, error: Refusal) -> tuple:
        cause = dict(type='query_shard_exception', reason=f'failed to create query: {error}', index=index.name,
                     index_uuid=index.uuid)
        return 400, dict(status=400, error=dict(
            root_cause=[cause], type='search_phase_execution_exception', reason='all shards failed', phase='query',
            grouped=True, failed_shards=[dict(shard=0, index=index.name, reason=cause)]))
