"""A strict OpenSearch for tests, after the sources of 3.9: it refuses what they refuse, in their words, and scores as Lucene does.

Not modelled: merging and its thresholds, relevance of analysers (words are cut at spaces, BM25 with k1 1.2 and b 0.75), and the clusters that a
seismic segment skips (`heap_factor`): its scores are those of a segment that skips none. Classes named below without a package are in
modules/mapper-extras and server of opensearch-project/OpenSearch; those of `neuralsearch` in opensearch-project/neural-search.
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
SEISMIC = {'n_postings': (int, lambda v: v > 0, 'a positive integer'), 'cluster_ratio': (float, lambda v: 0 < v < 1, 'in (0, 1)'),
           'summary_prune_ratio': (float, lambda v: 0 < v <= 1, 'in (0, 1]'), 'approximate_threshold': (int, lambda v: v >= 0, 'a non-Negative integer'),
           'quantization_ceiling_ingest': (float, lambda v: v > 0, 'a positive float'), 'quantization_ceiling_search': (float, lambda v: v > 0, 'a positive float')}
CEILINGS = {'quantization_ceiling_ingest': 3.0, 'quantization_ceiling_search': 16.0, 'approximate_threshold': 1_000_000}
FOLD = 32_768  # SparseConstants.MODULUS_FOR_SHORT


class Refusal(Exception):
    "An error of the server: status, type, reason and what caused it."
    def __init__(self, status: int, type: str, reason: str, **more):
        super().__init__(reason); self.status, self.error = status, dict(type=type, reason=reason, **more)

    def body(self) -> dict: return dict(error=dict(root_cause=[self.error], **self.error), status=self.status)


def illegal(reason: str) -> Refusal: return Refusal(400, 'illegal_argument_exception', reason)
def unparsed(reason: str) -> Refusal: return Refusal(400, 'parsing_exception', reason, line=1, col=1)
def unmapped(reason: str) -> Refusal: return Refusal(400, 'mapper_parsing_exception', reason)


def distinct(pairs: list) -> dict:
    "A JSON object; a name twice is refused (XContentParser, strict duplicate detection)."
    twice = [name for name, number in Counter(name for name, _ in pairs).items() if number > 1]
    if twice: raise ValueError(f"Duplicate field '{twice[0]}'")
    return dict(pairs)


def no_number(text: str): raise ValueError(f"Non-standard token '{text}': enable JsonParser.Feature.ALLOW_NON_NUMERIC_NUMBERS to allow")


def strict_json(text: bytes) -> object: return json.loads(text, object_pairs_hook=distinct, parse_constant=no_number)


def kept(value: float) -> float:
    "What Lucene's FeatureField keeps: the upper 17 bits of the float32, nine of them significant; the rest is cut off."
    return float((np.array(value, np.float32).view(np.int32) >> 15 << 15).view(np.float32))


# Mappings

def check_name(name: str) -> None:
    "MetadataCreateIndexService.validateIndexOrAliasName."
    wrong = [('must be lowercase', name != name.lower()), ("must not start with '_', '-', or '+'", name[:1] in '_-+'),
             ('must not contain the following characters [ , ", *, \\, <, |, ,, >, /, ?]', re.search(r'[ "*\\<|,>/?]', name))]
    for reason, found in wrong:
        if found: raise Refusal(400, 'invalid_index_name_exception', f'Invalid index name [{name}], {reason}', index=name)


def check_seismic(parameters: dict) -> None:
    "neuralsearch Seismic.validateMethod: every parameter known, of its type and in its range."
    wrong = []
    for name, value in parameters.items():
        if name not in SEISMIC: wrong.append(f"Unknown parameter '{name}' found"); continue
        kind, fits, said = SEISMIC[name]
        try: fine = fits(kind(str(value)))
        except ValueError: wrong.append(f'Parameter [{name}] must be of java.lang.{kind.__name__.title()} type'); continue
        if not fine: wrong.append(f'Parameter [{name}] must be {said}')
    if wrong: raise unmapped('Validation Failed: ' + ''.join(f'{n}: {message};' for n, message in enumerate(wrong, 1)))


def check_field(name: str, mapped: dict, server) -> None:
    "TypeParsers and ParametrizedFieldMapper: known types and parameters; neuralsearch SparseVectorFieldMapper: `method` is required and is seismic."
    kind, given = mapped.get('type', 'object'), {key: value for key, value in mapped.items() if key != 'type'}
    known = {'rank_features': {'meta'}, 'text': {'analyzer', 'search_analyzer', 'index', 'meta'}} | ({'sparse_vector': {'method'}} if server.has_seismic else {})
    if kind not in known: raise unmapped(f'No handler for type [{kind}] declared on field [{name}]')
    for key in given:
        if key not in known[kind]: raise unmapped(f'unknown parameter [{key}] on mapper [{name}] of type [{kind}]')
    if kind == 'text' and (analyser := given.get('analyzer', 'standard')) not in server.analysers: raise unmapped(f'analyzer [{analyser}] has not been configured in mappings')
    if kind != 'sparse_vector': return
    method = given.get('method')
    if method is None: raise unmapped('[sparse_vector] requires [method] parameter')
    if method.get('name') != 'seismic': raise unmapped(f"[method.name]: {method.get('name')} is not supported")
    check_seismic(method.get('parameters', {}))


def check_body(body: dict, server) -> None:
    "CreateIndexRequest, IndexScopedSettings and RootObjectMapper: nothing unknown."
    for key in body:
        if key not in ('settings', 'mappings', 'aliases'): raise Refusal(400, 'parse_exception', f'unknown key [{key}] for create index')
    settings = body.get('settings', {}); settings = settings.get('index', settings)
    for key in settings:
        if key not in {'number_of_shards', 'number_of_replicas', 'refresh_interval'} | ({'sparse'} if server.has_seismic else set()):
            raise illegal(f'unknown setting [index.{key}] please check that any required plugins are installed, or check the breaking changes documentation for removed settings')
    mappings = body.get('mappings', {})
    for key, value in mappings.items():
        if key not in ('dynamic', '_meta', 'properties', '_source'): raise unmapped(f'Root mapping definition has unsupported parameters:  [{key} : {value}]')
    for name, mapped in mappings.get('properties', {}).items(): check_field(name, mapped, server)


# Documents

def number(value, kind: str) -> float:
    "XContentParser.floatValue(coerce) and FeatureField.setFeatureValue: a finite, positive, normal float; text that says one will do."
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        token = {list: 'START_ARRAY', dict: 'START_OBJECT', bool: 'VALUE_BOOLEAN'}[type(value)]
        raise illegal(f'[{kind}] fields take hashes that map a feature to a strictly positive float, but got unexpected token {token}')
    try: return float(value)
    except ValueError: raise illegal(f'For input string: "{value}"') from None


def feature(name: str, field: str, value: float) -> float:
    "Lucene FeatureField.setFeatureValue."
    with np.errstate(over='ignore'): single = np.float32(value)
    if not np.isfinite(single): raise illegal(f'featureValue must be finite, got: {single} for feature {name} on field {field}')
    if single < np.finfo(np.float32).tiny: raise illegal(f'featureValue must be a positive normal float, got: {single} for feature {name} on field {field} which is less than the minimum positive normal float: 1.17549435E-38')
    return float(single)


def features(field: str, kind: str, given) -> dict:
    """RankFeaturesFieldMapper.parse and neuralsearch SparseVectorFieldMapper.parseCreateField: objects of single values; in `sparse_vector` by integers that are not negative.

    Dots and empty names: Elasticsearch's RankFeaturesFieldMapper refuses dots (elastic/elasticsearch#93756); OpenSearch's has no such check, but its
    RankFeatureQueryBuilder cuts a field at its last dot, so that such a feature is stored and never found. Refused here, at the first of the two."""
    found = {}
    for part in given if isinstance(given, list) else [given]:
        if not isinstance(part, dict): raise illegal(f'[{kind}] fields must be json objects, expected a START_OBJECT but got: VALUE_{"STRING" if isinstance(part, str) else "NUMBER"}')
        for name, value in part.items():
            if kind == 'rank_features' and '.' in name: raise illegal(f'[rank_features] fields do not support dots in feature names but found [{name}]')
            if not name: raise illegal('field name cannot be an empty string')
            if value is None: continue
            if name in found: raise illegal(f'[{kind}] fields do not support indexing multiple values for the same {"rank feature" if kind == "rank_features" else "key"} [{field}.{name}] in the same document')
            found[name] = feature(name, field, number(value, kind))
            if kind == 'sparse_vector' and not re.fullmatch(r'[+-]?\d+', name): raise illegal('[sparse_vector] fields should be valid integer')
            if kind == 'sparse_vector' and int(name) < 0: raise illegal('[sparse_vector] fields should be text of non-negative integer')
    return found


def document(source: bytes, mappings: dict) -> dict: # field: features, or words
    "DocumentParser: the fields of a document; unknown ones are refused under `dynamic: strict`, the cause is told as `caused_by`."
    try: body = strict_json(source)
    except ValueError as error: raise Refusal(400, 'mapper_parsing_exception', 'failed to parse', caused_by=dict(type='json_parse_exception', reason=str(error))) from None
    found = {}
    for name, value in body.items():
        mapped = mappings.get('properties', {}).get(name)
        if mapped is None and mappings.get('dynamic') == 'strict':
            raise Refusal(400, 'strict_dynamic_mapping_exception', f'mapping set to strict, dynamic introduction of [{name}] within [_doc] is not allowed')
        if mapped is None: continue
        try: found[name] = words(value) if mapped['type'] == 'text' else features(name, mapped['type'], value)
        except Refusal as error: raise Refusal(400, 'mapper_parsing_exception', 'failed to parse', caused_by=error.error) from None
    return found


def words(value) -> list:
    "TextFieldMapper; the analyser is spaces."
    if isinstance(value, (dict, list)): raise illegal(f"Can't get text on a START_{'OBJECT' if isinstance(value, dict) else 'ARRAY'}")
    return str(value).lower().split()


@dataclass
class Shelf:
    "An index: what was written, and what is seen since the last refresh."
    name: str
    body: dict
    uuid: str = field(default_factory=lambda: uuid.uuid4().hex[:22])
    written: dict = field(default_factory=dict)   # id: fields
    ids: list = field(default_factory=list)       # seen
    lists: dict = field(default_factory=dict)     # field: {feature: (documents, float32 values)}

    @property
    def mappings(self) -> dict: return self.body.get('mappings', {})

    def kind(self, field: str) -> str: return self.mappings.get('properties', {}).get(field, {}).get('type', '')

    def refresh(self) -> None:
        self.ids, lists = list(self.written), defaultdict(lambda: defaultdict(list))
        for place, fields in enumerate(self.written.values()):
            for name, value in fields.items():
                for term, weight in (Counter(value) if isinstance(value, list) else value).items(): lists[name][term].append((place, weight))
        self.lists = {name: {term: (np.array([p for p, _ in rows]), np.array([w for _, w in rows], np.float32)) for term, rows in terms.items()} for name, terms in lists.items()}

    def list_of(self, field: str, term: str) -> tuple: # documents, values as Lucene kept them
        places, values = self.lists.get(field, {}).get(term, (np.empty(0, np.int64), np.empty(0, np.float32)))
        return places, (values.view(np.int32) >> 15 << 15).view(np.float32)


# Queries: [N] scores, nan where a document does not match

def total(parts: list, size: int) -> np.ndarray:
    matched = ~np.isnan(np.array(parts or [np.full(size, np.nan)])).all(0)
    return np.where(matched, np.nansum(np.array(parts or [np.full(size, np.nan)]), 0), np.nan)


def scored(shelf: Shelf, field: str, term: str, function) -> np.ndarray:
    places, values = shelf.list_of(field, term)
    found = np.full(len(shelf.ids), np.nan); found[places] = function(values)
    return found


def weight(value: float) -> float:
    "Lucene FeatureField.newLinearQuery: a weight in (0, 64]."
    if not 0 < value <= 64: raise illegal(f'weight must be in (0, 64.0], got: {value}')
    return np.float32(value)


def function_of(given: dict, shelf: Shelf, field: str, term: str):
    "RankFeatureQueryBuilder.ScoreFunction and Lucene FeatureField: saturation unless told otherwise, its pivot the mean of what the index holds."
    name, how = next(((name, given[name]) for name in ('log', 'saturation', 'sigmoid', 'linear') if name in given), ('saturation', {}))
    needed = {'log': {'scaling_factor'}, 'sigmoid': {'pivot', 'exponent'}}.get(name, set())
    for key in how:
        if key not in needed | ({'pivot'} if name == 'saturation' else set()): raise Refusal(400, 'x_content_parse_exception', f'[{name}] unknown field [{key}]')
    if needed - set(how): raise illegal(f'Required [{", ".join(sorted(needed - set(how)))}]')
    if name == 'linear': return lambda s: s
    if name == 'log': return lambda s: np.log(how['scaling_factor'] + s)
    if name == 'sigmoid': return lambda s: 1 - how['pivot'] ** how['exponent'] / (s ** how['exponent'] + how['pivot'] ** how['exponent'])
    pivot = how.get('pivot')
    if pivot is None:  # FeatureField.computePivotFeatureValue: of the mean of the frequencies, which are the floats' upper bits
        values = shelf.list_of(field, term)[1]
        pivot = float((np.array(int((values.view(np.int32) >> 15).mean()) << 15, np.int32)).view(np.float32)) if len(values) else 1.0
    return lambda s: 1 - pivot / (s + pivot)


def rank_feature(given: dict, shelf: Shelf) -> np.ndarray:
    "RankFeatureQueryBuilder: one function at most; a field that is unmapped, or a feature of `sparse_vector`, matches nothing and is no error."
    for key in given:
        if key not in {'field', 'boost', '_name', 'log', 'saturation', 'sigmoid', 'linear'}: raise Refusal(400, 'x_content_parse_exception', f'[feature] unknown field [{key}]')
    if 'field' not in given: raise illegal('Required [field]')
    if len({'log', 'saturation', 'sigmoid', 'linear'} & set(given)) > 1: raise illegal('Can only specify one of [log], [saturation], [sigmoid] and [linear]')
    boost = given.get('boost', 1.0)
    if boost < 0: raise illegal(f'negative [boost] are not allowed in [rank_feature], use a value between 0 and 1 to deboost')
    if shelf.kind(given['field']): raise illegal(f"[rank_feature] query only works on [rank_feature] fields and features of [rank_features] fields, not [{shelf.kind(given['field'])}]")
    field, _, term = given['field'].rpartition('.')
    if shelf.kind(field) != 'rank_features': return np.full(len(shelf.ids), np.nan)
    function = function_of(given, shelf, field, term)
    return scored(shelf, field, term, lambda s: np.float32(boost) * function(s))


def fit_tokens(tokens: dict, integers: bool) -> dict:
    "XContentParser.map(floatValue); neuralsearch SparseAnnQueryBuilder.preprocessQueryTokens for `method_parameters`."
    for name, value in tokens.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)): raise unparsed(f'Failed to parse object: expecting token of type [VALUE_NUMBER] but found [{value}]')
        if integers and not re.fullmatch(r'-?\d+', name): raise illegal('Query tokens should be valid integer')
        if integers and int(name) < 0: raise illegal('Query tokens should be non-negative integer!')
    return {name: weight(value) for name, value in tokens.items()}


def read_tokens(given: dict, server) -> tuple: # field, tokens, method_parameters
    "neuralsearch NeuralSparseQueryBuilder.fromXContent: one field, known parameters, tokens or a text (which needs a model, so is refused here)."
    if len(given) != 1: raise unparsed("[neural_sparse] query doesn't support multiple fields, found [" + '] and ['.join(given) + ']')
    (field, how), = given.items()
    for key, value in how.items():
        if key == 'method_parameters' and server.has_seismic: continue
        if key not in {'query_tokens', 'query_text', 'model_id', 'analyzer', 'max_token_score', 'boost', '_name'}:
            raise unparsed(f'[neural_sparse] unknown token [START_OBJECT] after [{key}]' if isinstance(value, dict) else f'[neural_sparse] query does not support [{key}] field')
    if 'query_tokens' not in how: raise illegal('either query_text field or query_tokens field must be provided for [neural_sparse] query' if 'query_text' not in how else 'query_text and model_id cannot be null')
    for key, value in (how.get('method_parameters') or {}).items():
        if key not in ('top_n', 'k', 'heap_factor', 'filter'): raise unparsed(f'[neural_sparse] unknown field [{key}]')
        if key != 'filter' and value <= 0: raise unparsed(f'[neural_sparse] {key} must be a positive {"float" if key == "heap_factor" else "integer"}')
    return field, how['query_tokens'], how.get('method_parameters')


def neural_sparse(given: dict, shelf: Shelf, server, keep=lambda tokens: tokens) -> np.ndarray:
    "neuralsearch NeuralSparseQueryBuilder.doToQuery: linear features of `rank_features`, and of `sparse_vector` but for large segments asked with `method_parameters`."
    field, tokens, method = read_tokens(given, server)
    if shelf.kind(field) not in ('rank_features', 'sparse_vector'): raise illegal('[neural_sparse] query only works on [rank_features] fields')
    tokens = keep(fit_tokens(tokens, method is not None))
    if len(tokens) > MOST_CLAUSES: raise illegal(f'maxClauseCount is set to {MOST_CLAUSES}')
    if method is not None and shelf.kind(field) != 'sparse_vector': return total([scored(shelf, field, term, lambda s, w=w: w * s) for term, w in tokens.items()], len(shelf.ids))
    parameters = CEILINGS | (shelf.mappings['properties'][field].get('method') or {}).get('parameters', {})
    if method is not None and len(shelf.ids) >= parameters['approximate_threshold']: return seismic(shelf, field, tokens, parameters, method)
    return total([scored(shelf, field, term, lambda s, w=w: w * s) for term, w in tokens.items()], len(shelf.ids))


def bytes_of(values: np.ndarray, ceiling: float) -> np.ndarray: return np.round(np.minimum(values, ceiling) * 255 / ceiling)


def seismic(shelf: Shelf, field: str, tokens: dict, parameters: dict, method: dict) -> np.ndarray:
    "neuralsearch SparseVector and ByteQuantizer: ids folded into 15 bits, weights into bytes below a ceiling; only documents with one of the `top_n` heaviest terms."
    up, down = parameters['quantization_ceiling_ingest'], parameters['quantization_ceiling_search']
    asked, dense = defaultdict(float), defaultdict(lambda: np.zeros(len(shelf.ids)))
    for term, value in tokens.items(): asked[int(term) % FOLD] = max(asked[int(term) % FOLD], value)
    for term, (places, values) in shelf.lists.get(field, {}).items():
        column = int(term) % FOLD
        if column in asked: dense[column][places] = np.maximum(dense[column][places], bytes_of(values, up))
    heavy = sorted(asked, key=asked.get, reverse=True)[:method.get('top_n', 10)]
    found = sum((bytes_of(np.array(value), down) * dense[column] for column, value in asked.items()), np.zeros(len(shelf.ids))) * up * down / 255 ** 2
    seen = sum((dense[column] > 0 for column in heavy), np.zeros(len(shelf.ids))) > 0
    found = np.where(seen & (found > 0), found, np.nan)
    best = np.argsort(-np.nan_to_num(found, nan=-1), kind='stable')[:method.get('k', 10)]
    return np.where(np.isin(np.arange(len(found)), best), found, np.nan)


def match(given: dict, shelf: Shelf) -> np.ndarray:
    "MatchQueryBuilder on a text field; TextFieldMapper refuses one that is not indexed."
    (field, how), = given.items()
    how = how if isinstance(how, dict) else dict(query=how)
    mapped = shelf.mappings.get('properties', {}).get(field, {})
    if mapped.get('index') is False: raise illegal(f'Cannot search on field [{field}] since it is not indexed.')
    length = np.zeros(len(shelf.ids))
    for places, counts in shelf.lists.get(field, {}).values(): length[places] += counts
    def bm25(term):
        places, counts = shelf.list_of(field, term)
        idf = np.log1p((len(shelf.ids) - len(places) + 0.5) / (len(places) + 0.5))
        return scored(shelf, field, term, lambda tf: how.get('boost', 1.0) * idf * tf / (tf + 1.2 * (0.25 + 0.75 * length[places] / max(1, length.mean()))))
    return total([bm25(term) for term in set(words(how['query']))], len(shelf.ids))


def boolean(given: dict, shelf: Shelf, server, keep) -> np.ndarray:
    "BoolQueryBuilder: without a clause it matches everything; with too many it is refused."
    for key in given:
        if key not in ('should', 'must', 'filter', 'boost'): raise unparsed(f'[bool] query does not support [{key}]')
    clauses = {kind: part if isinstance(part, list) else [part] for kind, part in given.items() if kind != 'boost'}
    if sum(map(len, clauses.values())) > MOST_CLAUSES: raise illegal(f'maxClauseCount is set to {MOST_CLAUSES}')
    if not any(clauses.values()): return np.ones(len(shelf.ids))
    found = {kind: [scores(part, shelf, server, keep) for part in parts] for kind, parts in clauses.items()}
    needed = [~np.isnan(part) for kind in ('must', 'filter') for part in found.get(kind, [])]
    summed = total([*found.get('must', []), *found.get('should', [])], len(shelf.ids))
    return np.where(np.all(needed, axis=0), np.nan_to_num(summed), np.nan) if needed else summed * given.get('boost', 1.0)


def scores(query: dict, shelf: Shelf, server, keep=lambda tokens: tokens) -> np.ndarray:
    "AbstractQueryBuilder.parseInnerQueryBuilder: one query of a known name."
    if len(query) != 1: raise unparsed(f'[{next(iter(query), "")}] malformed query, expected [END_OBJECT] but found [FIELD_NAME]')
    (name, given), = query.items()
    if name == 'match_all': return np.full(len(shelf.ids), given.get('boost', 1.0))
    if name == 'rank_feature': return rank_feature(given, shelf)
    if name == 'match': return match(given, shelf)
    if name == 'bool': return boolean(given, shelf, server, keep)
    if name == 'neural_sparse' and server.has_neural: return neural_sparse(given, shelf, server, keep)
    raise Refusal(400, 'parsing_exception', f'unknown query [{name}]', caused_by=dict(type='named_object_not_found_exception', reason=f'[1:1] unknown field [{name}]'))


def two_phases(pipeline: dict, server) -> dict | None: # prune_ratio, expansion_rate, max_window_size
    "neuralsearch NeuralSparseTwoPhaseProcessor.Factory, in a temporary pipeline of one request."
    for processor in pipeline.get('request_processors', []):
        (name, given), = processor.items()
        if name != 'neural_sparse_two_phase_processor' or not server.has_two_phase: raise illegal(f'Invalid processor type {name}')
        how = dict(prune_ratio=0.4, expansion_rate=5.0, max_window_size=10_000) | given.get('two_phase_parameter', {})
        if not 0 <= how['prune_ratio'] < 1: raise illegal(f'Illegal prune_ratio {how["prune_ratio"]:f} for prune_type: max_ratio. prune_ratio should be in the range [0, 1).')
        if how['expansion_rate'] < 1: raise illegal(f'The two_phase_parameter.expansion_rate must >= 1.0. Received: {how["expansion_rate"]:f}')
        if how['max_window_size'] < 50: raise illegal(f'The two_phase_parameter.max_window_size must >= 50. Received: \n{how["max_window_size"]}')
        return how


def rescored(body: dict, shelf: Shelf, server, how: dict, size: int) -> np.ndarray:
    "neuralsearch NeuralSparseTwoPhaseProcessor.processRequest and PruneUtils.pruneByMaxRatio: the light terms count for the best of the heavy ones only."
    if any(mapped['type'] == 'sparse_vector' for mapped in shelf.mappings['properties'].values()): raise illegal('Two phase search processor is not compatible with [seismic] field for now')
    window = int(size * how['expansion_rate'])
    if window > how['max_window_size']: raise illegal(f"The two-phase window size of neural_sparse_two_phase_processor should be [0,{how['max_window_size']}], but get the value of {window}")
    limit = lambda tokens: how['prune_ratio'] * max(tokens.values(), default=0)
    heavy = scores(body['query'], shelf, server, lambda tokens: {t: w for t, w in tokens.items() if w >= limit(tokens)})
    light = scores(body['query'], shelf, server, lambda tokens: {t: w for t, w in tokens.items() if w < limit(tokens)})
    best = np.argsort(-np.nan_to_num(heavy, nan=-1), kind='stable')[:window]
    return np.where(np.isin(np.arange(len(heavy)), best), heavy + np.nan_to_num(light), np.nan if len(best) < size else heavy)


# The server

@dataclass
class Fault:
    "What goes wrong with one request: rejected, breaker, large, unavailable, slow (until given up), drop, half."
    kind: str


def rejected(size: int) -> Refusal:
    "IndexingPressure and OpenSearchRejectedExecutionException, as a cluster under load tells it."
    return Refusal(429, 'rejected_execution_exception', f'rejected execution of coordinating operation [coordinating_and_primary_bytes=107000000, replica_bytes=0, all_bytes=107000000, coordinating_operation_bytes={size}, max_coordinating_and_primary_bytes=107374182]')


def tripped(size: int) -> Refusal:
    "HierarchyCircuitBreakerService.checkParentLimit and CircuitBreakingException."
    return Refusal(429, 'circuit_breaking_exception', f'[parent] Data too large, data for [<http_request>] would be [{size + 1020054732}/972.7mb], which is larger than the limit of [1020054732/972.7mb]', bytes_wanted=size + 1020054732, bytes_limit=1020054732, durability='TRANSIENT')


class Fake(ThreadingHTTPServer):
    "State of the fake and its faults; `faults` are used up in order by requests to the endpoint they name, `always` never is."
    daemon_threads, block_on_close = True, False

    def __init__(self, version: str = '3.9.0', plugins=('opensearch-neural-search',), auth: tuple | None = None, largest: int = 100 << 20, certificate: tuple | None = None):
        super().__init__(('127.0.0.1', 0), Handler)
        if certificate: context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); context.load_cert_chain(*certificate); self.socket = context.wrap_socket(self.socket, server_side=True)
        self.scheme, self.closed = 'https' if certificate else 'http', False
        self.version, self.plugins, self.auth, self.largest = version, set(plugins), auth, largest
        self.shelves, self.faults, self.always, self.requests, self.lock = {}, defaultdict(list), {}, [], threading.RLock()
        self.scrolls = {}  # id of a scroll: the answers that are still to come

    @property
    def url(self) -> str: return f'{self.scheme}://127.0.0.1:{self.server_port}'

    def since(self, *version: int) -> bool: return tuple(map(int, self.version.split('.')[:2])) >= version and self.has_neural

    @property
    def has_neural(self) -> bool: return 'opensearch-neural-search' in self.plugins

    @property
    def has_two_phase(self) -> bool: return self.since(2, 15)

    @property
    def has_seismic(self) -> bool: return self.since(3, 3)

    @property
    def analysers(self) -> set: return ANALYSERS | ({'nori'} if 'analysis-nori' in self.plugins else set())

    def shelf(self, name: str) -> Shelf:
        if name not in self.shelves: raise Refusal(404, 'index_not_found_exception', f'no such index [{name}]', index=name)
        return self.shelves[name]

    def fault(self, endpoint: str) -> Fault | None: return self.faults[endpoint].pop(0) if self.faults[endpoint] else self.always.get(endpoint)

    def handle_error(self, request, client_address): pass  # a client that was killed or gave up


@contextmanager
def serving(**settings):
    "A fake on a free port of this machine."
    server = Fake(**settings)
    threading.Thread(target=server.serve_forever, kwargs=dict(poll_interval=0.01), daemon=True).start()
    try: yield server
    finally: server.closed = True; server.shutdown(); server.server_close()


def actions(text: bytes, name: str) -> list: # [(action, id, source)]
    "BulkRequestParser and BulkRequest.validate: lines in pairs, ended by a newline; an id that is too long fails the whole request."
    if not text.endswith(b'\n'): raise illegal('The bulk request must be terminated by a newline [\\n]')
    lines, found, place = text.split(b'\n')[:-1], [], 0
    while place < len(lines):
        try: head = strict_json(lines[place])
        except ValueError as error: raise Refusal(400, 'json_parse_exception', str(error)) from None
        if not isinstance(head, dict): raise illegal(f'Malformed action/metadata line [{place + 1}], expected START_OBJECT but found [VALUE]')
        (kind, meta), = head.items() if len(head) == 1 else [('', {})]
        if kind not in ('index', 'create', 'delete'): raise illegal(f'Malformed action/metadata line [{place + 1}], expected field [create], [delete], [index] or [update] but found [{kind}]')
        for key in meta:
            if key not in ('_index', '_id', 'routing'): raise illegal(f'Action/metadata line [{place + 1}] contains an unknown parameter [{key}]')
        id, source = meta.get('_id', uuid.uuid4().hex[:20]), b'' if kind == 'delete' else lines[place + 1] if place + 1 < len(lines) else b''
        if kind != 'delete' and not source: raise Refusal(400, 'action_request_validation_exception', 'Validation Failed: 1: no requests added;')
        if len(id.encode()) > MOST_ID: raise Refusal(400, 'action_request_validation_exception', f'Validation Failed: 1: id is too long, must be no longer than {MOST_ID} bytes but was: {len(id.encode())};')
        if not id: raise illegal('if _id is specified it must not be empty')
        found.append((kind, meta.get('_index', name), id, source)); place += 1 if kind == 'delete' else 2
    if not found: raise Refusal(400, 'action_request_validation_exception', 'Validation Failed: 1: no requests added;')
    return found


def item(server: Fake, kind: str, name: str, id: str, source: bytes) -> dict:
    "TransportShardBulkAction: each document is taken or refused by itself."
    try:
        shelf = server.shelf(name); there = id in shelf.written
        if kind == 'delete': shelf.written.pop(id, None); return dict(_index=name, _id=id, result='deleted' if there else 'not_found', status=200 if there else 404)
        shelf.written[id] = document(source, shelf.mappings)
        return dict(_index=name, _id=id, result='updated' if there else 'created', status=200 if there else 201)
    except Refusal as error: return dict(_index=name, _id=id, status=error.status, error=error.error)


class Handler(BaseHTTPRequestHandler):
    "RestController: the addresses, the types of content, and the faults."
    protocol_version, wbufsize, disable_nagle_algorithm = 'HTTP/1.1', 1 << 16, True

    def log_message(self, *_): pass

    def answer(self, status: int, body=None) -> None:
        text = b'' if body is None else json.dumps(body, ensure_ascii=False).encode()
        self.send_response(status); self.send_header('Content-Type', 'application/json; charset=UTF-8'); self.send_header('Content-Length', str(len(text))); self.end_headers()
        if self.command != 'HEAD': self.wfile.write(text)

    def route(self) -> None:
        if self.server.closed: self.close_connection = True; return
        self.text = self.rfile.read(int(self.headers.get('Content-Length') or 0))
        parts = urlsplit(self.path)
        self.parameters, self.path_parts = {name: values[-1] for name, values in parse_qs(parts.query).items()}, [unquote(part) for part in parts.path.strip('/').split('/') if part]
        endpoint = next((part for part in reversed(self.path_parts) if part[0] == '_'), self.command)
        try: status, body = self.guarded(endpoint)
        except Refusal as error: status, body = error.status, error.body()
        if status: self.answer(status, body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = route

    def guarded(self, endpoint: str) -> tuple:
        "Who asks, in which type of content, and the fault that is due."
        server = self.server
        if server.auth and self.headers.get('Authorization') != 'Basic ' + base64.b64encode(':'.join(server.auth).encode()).decode():
            return 401, dict(error='Unauthorized', status=401)
        kind = (self.headers.get('Content-Type') or '').split(';')[0]
        if self.text and kind not in ('application/json', 'application/x-ndjson'): return 406, dict(error=f'Content-Type header [{kind}] is not supported', status=406)
        if len(self.text) > server.largest: return 413, None
        with server.lock:
            fault = server.fault(endpoint)
            server.requests.append((self.command, '/'.join(self.path_parts), self.text, fault and fault.kind))
        return self.faulty(fault, endpoint) if fault else self.handled(endpoint)

    def faulty(self, fault: Fault, endpoint: str) -> tuple:
        if fault.kind == 'rejected': raise rejected(len(self.text))
        if fault.kind == 'breaker': raise tripped(len(self.text))
        if fault.kind == 'large': return 413, None
        if fault.kind == 'unavailable': raise Refusal(503, 'cluster_manager_not_discovered_exception', None)
        if fault.kind == 'slow': self.wait_for_the_end()
        if fault.kind == 'half': return self.bulk(half=True)
        found = self.handled(endpoint)
        if fault.kind in ('drop', 'slow'):
            self.close_connection = True
            return 0, None
        return found

    def wait_for_the_end(self) -> None:
        "Until the client hangs up: it sends nothing more."
        try: self.rfile.read(1)
        except OSError: pass

    def handled(self, endpoint: str) -> tuple:
        with self.server.lock:
            if not self.path_parts: return 200, dict(name='fake', cluster_name='fake', version=dict(distribution='opensearch', number=self.server.version), tagline='The OpenSearch Project: https://opensearch.org/')
            if self.path_parts[0] == '_nodes': return 200, dict(nodes=dict(fake=dict(version=self.server.version, plugins=[dict(name=name) for name in sorted(self.server.plugins)])))
            if endpoint == '_bulk': return self.bulk()
            if self.path_parts == ['_search', 'scroll']: return self.scroll()
            if len(self.path_parts) == 1: return self.index()
            return self.inner(endpoint)

    def index(self) -> tuple:
        name, server = self.path_parts[0], self.server
        if self.command == 'HEAD': return (200 if name in server.shelves else 404), None
        if self.command == 'PUT':
            check_name(name)
            if name in server.shelves: raise Refusal(400, 'resource_already_exists_exception', f'index [{name}/{server.shelves[name].uuid}] already exists', index=name)
            body = self.json(); check_body(body, server); server.shelves[name] = Shelf(name, body)
            return 200, dict(acknowledged=True, shards_acknowledged=True, index=name)
        shelf = server.shelf(name)
        if self.command == 'DELETE': del server.shelves[name]; return 200, dict(acknowledged=True)
        return 200, {name: dict(aliases={}, mappings=shelf.mappings, settings=dict(index=dict(uuid=shelf.uuid, **shelf.body.get('settings', {}).get('index', {}))))}

    def inner(self, endpoint: str) -> tuple:
        shelf, shards = self.server.shelf(self.path_parts[0]), dict(total=1, successful=1, skipped=0, failed=0)
        if endpoint == '_refresh': shelf.refresh(); return 200, dict(_shards=shards)
        if endpoint == '_flush': return 200, dict(_shards=shards)
        if endpoint == '_count': return 200, dict(count=len(shelf.ids), _shards=shards)
        if endpoint == '_search': return self.search(shelf, shards)
        raise illegal(f'no handler found for uri [{self.path}] and method [{self.command}]')

    def json(self) -> dict:
        try: return strict_json(self.text) if self.text else {}
        except ValueError as error: raise Refusal(400, 'json_parse_exception', str(error)) from None

    def bulk(self, half: bool = False) -> tuple:
        found = []
        for number, (kind, name, id, source) in enumerate(actions(self.text, self.path_parts[0] if self.path_parts[0] != '_bulk' else '')):
            full = dict(_index=name, _id=id, status=429, error=rejected(len(source)).error)
            found.append({kind: full if half and number % 2 else item(self.server, kind, name, id, source)})
        return 200, dict(took=1, errors=any('error' in next(iter(one.values())) for one in found), items=found)

    def begin_scroll(self, shelf: Shelf, shards: dict, size: int) -> tuple:
        "SearchScrollAsyncAction: what is seen now, a page a call, whatever is written meanwhile; for `match_all` alone."
        everything = dict(match_all={})
        if self.json().get('query', everything) != everything: raise illegal('the fake scrolls match_all only')
        if size > MOST_HITS:
            raise illegal(f'Batch size is too large, size must be less than or equal to: [{MOST_HITS}] but was [{size}].')
        pages = [shelf.ids[start:start + size] for start in range(0, len(shelf.ids), size)]
        name = uuid.uuid4().hex
        self.server.scrolls[name] = (shelf.name, shards, pages)
        return self.turned(name)

    def turned(self, name: str) -> tuple:
        index, shards, pages = self.server.scrolls[name]
        hits = [dict(_index=index, _id=id, _score=None) for id in (pages.pop(0) if pages else [])]
        return 200, dict(_scroll_id=name, took=1, timed_out=False, _shards=shards, hits=dict(max_score=None, hits=hits))

    def scroll(self) -> tuple:
        "RestSearchScrollAction and RestClearScrollAction: the id stands in the body."
        body = self.json()
        if self.command == 'DELETE':
            for name in body['scroll_id']: self.server.scrolls.pop(name, None)
            return 200, dict(succeeded=True, num_freed=len(body['scroll_id']))
        name = body.get('scroll_id')
        if name not in self.server.scrolls:
            raise Refusal(404, 'search_context_missing_exception', f'No search context found for id [{name}]')
        return self.turned(name)

    def search(self, shelf: Shelf, shards: dict) -> tuple:
        "RestSearchAction and SearchService: known keys, a window of 10,000; what a shard refuses is told as `search_phase_execution_exception`."
        body = self.json()
        for key, value in body.items():
            if key not in ('query', 'size', '_source', 'track_total_hits', 'search_pipeline', 'sort'): raise unparsed(f'Unknown key for a {"START_OBJECT" if isinstance(value, dict) else "VALUE"} in [{key}].')
        for key in self.parameters:
            if key not in ('allow_partial_search_results', 'search_pipeline', 'scroll', 'size', '_source'): raise illegal(f'request [/{shelf.name}/_search] contains unrecognized parameter: [{key}]')
        size = int(self.parameters.get('size', body.get('size', 10)))
        if body.get('sort', '_doc') != '_doc': raise illegal(f'No mapping found for [{body["sort"]}] in order to sort on')
        if 'scroll' in self.parameters: return self.begin_scroll(shelf, shards, size)
        try:
            if size > MOST_HITS: raise illegal(f'Result window is too large, from + size must be less than or equal to: [{MOST_HITS}] but was [{size}].')
            phases = two_phases(body.get('search_pipeline', {}), self.server)
            found = rescored(body, shelf, self.server, phases, size) if phases else scores(body.get('query', {'match_all': {}}), shelf, self.server)
        except Refusal as error:
            if error.error['type'] in ('parsing_exception', 'x_content_parse_exception'): raise
            cause = dict(type='query_shard_exception', reason=f'failed to create query: {error}', index=shelf.name, index_uuid=shelf.uuid)
            return 400, dict(error=dict(root_cause=[cause], type='search_phase_execution_exception', reason='all shards failed', phase='query', grouped=True, failed_shards=[dict(shard=0, index=shelf.name, reason=cause)]), status=400)
        best = [place for place in np.argsort(-np.nan_to_num(found, nan=-np.inf), kind='stable')[:size] if not np.isnan(found[place])]
        hits = [dict(_index=shelf.name, _id=shelf.ids[place], _score=float(np.float32(found[place]))) for place in best]
        return 200, dict(took=1, timed_out=False, _shards=shards, hits=dict(max_score=hits[0]['_score'] if hits else None, hits=hits))
