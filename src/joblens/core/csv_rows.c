/* Rows of CSV with a few texts and many numbers: processes, and their further threads below them.
 *
 * For joblens.importers.epmt.process_data, which says what the rows mean. Only whole processes are taken, and only if
 * every line of them is as it should be; at anything else it stops, and Python parses the lines there.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x03090000 /* one library for all later versions of Python */
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MOST_DIGITS 18 /* that fit into 64 bits, whatever they are */
enum { TEXT = 't', OF_PROCESS = 'p', OF_THREAD = 'n' }; /* columns */
enum { OTHER, PROCESS, FURTHER };                       /* lines */

void joblens_mark_words(unsigned char *pairs, const char *words, Py_ssize_t room); /* see words.c */
const char *joblens_find_word(const char *text, const char *end, const unsigned char *pairs, const char *words,
                              Py_ssize_t room);

typedef struct {
    const char *begin;
    Py_ssize_t size;
    int escaped, has_word;
} Cell;

typedef struct {
    int64_t *at;
    size_t count, room;
} Values;

typedef struct {
    const char *kinds;
    Py_ssize_t width, texts;
    Cell *cells, *before; /* texts of this line, and of the last process */
    int64_t *values;      /* numbers of this line */
    PyObject **last;      /* texts of the last process, borrowed from the lists */
    PyObject *lists;      /* of texts, one for each column */
    const char *words;    /* that are searched for in texts */
    Py_ssize_t room;
    unsigned char pairs[1 << 16];
    Values own, further, first, with_words; /* the last: processes with a word in a text */
} Parser;

/* Return where so many more can be put, or NULL. */
static int64_t *reserve(Values *values, size_t more)
{
    if (values->count + more > values->room) {
        size_t room = 2 * values->room + more + 1024;
        int64_t *found = realloc(values->at, room * sizeof *found);
        if (!found) {
            PyErr_NoMemory();
            return NULL;
        }
        values->at = found;
        values->room = room;
    }
    return values->at + values->count;
}

static int add(Values *values, int64_t value)
{
    int64_t *place = reserve(values, 1);
    if (!place)
        return 0;
    *place = value;
    values->count++;
    return 1;
}

/* Return where the cell ends, or NULL. */
static const char *read_text(const char *at, const char *end, Cell *cell)
{
    static const unsigned char ends[256] = {[0] = 1, [1] = 1, ['\n'] = 1, ['\r'] = 1, [','] = 1, ['\\'] = 1};
    cell->begin = at;
    cell->escaped = 0;
    for (;; at++) {
        while (!ends[(unsigned char)*at]) /* a line ends in a newline */
            at++;
        if (*at == '\\') {
            cell->escaped = 1;
            if (++at == end)
                return NULL; /* it goes on in the next line */
        } else if (*at == ',' || at == end) {
            break;
        }
        if ((unsigned char)*at < 2 || *at == '\r')
            return NULL;
    }
    cell->size = at - cell->begin;
    return at;
}

static const char *read_number(const char *at, const char *end, int64_t *value, int *is_empty)
{
    const char *begin = at;
    int64_t found = 0;
    int negative = at < end && *at == '-';
    at += negative;
    const char *digits = at;
    unsigned digit; /* a line ends in a newline */
    for (; (digit = (unsigned)*at - '0') <= 9 && at - digits < MOST_DIGITS; at++)
        found = 10 * found + digit;
    *is_empty = at == begin;
    *value = negative ? -found : found;
    return (at < end && *at != ',') || (at == digits && negative) ? NULL : at;
}

static int read_line(Parser *parser, const char *at, const char *end)
{
    Cell *cell = parser->cells;
    int64_t *value = parser->values;
    int known = 0, missing = 0, is_empty;
    for (Py_ssize_t column = 0; column < parser->width; column++, at++) {
        if (parser->kinds[column] == TEXT) {
            at = read_text(at, end, cell++);
        } else {
            at = read_number(at, end, value++, &is_empty);
            if (is_empty && parser->kinds[column] == OF_THREAD)
                return OTHER;
            if (parser->kinds[column] == OF_PROCESS)
                *(is_empty ? &missing : &known) = 1;
        }
        if (!at || (at == end) != (column == parser->width - 1))
            return OTHER;
    }
    return known && missing ? OTHER : known ? PROCESS : FURTHER;
}

static int has_word(const Parser *parser, const char *text, Py_ssize_t size)
{
    return joblens_find_word(text, text + size, parser->pairs, parser->words, parser->room) != NULL;
}

static PyObject *make_text(const Parser *parser, Cell *cell)
{
    if (!cell->escaped) {
        cell->has_word = has_word(parser, cell->begin, cell->size);
        return PyUnicode_DecodeUTF8(cell->begin, cell->size, "replace");
    }
    char *plain = malloc((size_t)cell->size + 1);
    if (!plain)
        return PyErr_NoMemory();
    Py_ssize_t size = 0;
    for (Py_ssize_t at = 0; at < cell->size; at++) {
        at += cell->begin[at] == '\\';
        plain[size++] = cell->begin[at];
    }
    plain[size] = 0;
    cell->has_word = has_word(parser, plain, size);
    PyObject *text = PyUnicode_DecodeUTF8(plain, size, "replace");
    free(plain);
    return text;
}

/* Most are those of the process before. */
static int add_texts(Parser *parser)
{
    int found = 0;
    for (Py_ssize_t number = 0; number < parser->texts; number++) {
        Cell *cell = &parser->cells[number], *before = &parser->before[number];
        PyObject *text = parser->last[number];
        if (text && cell->size == before->size && !memcmp(cell->begin, before->begin, (size_t)cell->size)) {
            Py_INCREF(text);
            cell->has_word = before->has_word;
        } else if (!(text = make_text(parser, cell)))
            return 0;
        found |= cell->has_word;
        int failed = PyList_Append(PyList_GetItem(parser->lists, number), text) < 0;
        Py_DECREF(text);
        if (failed)
            return 0;
        parser->last[number] = text;
        parser->before[number] = *cell;
    }
    return !found || add(&parser->with_words, (int64_t)parser->first.count - 1);
}

static int add_numbers(Parser *parser, int line)
{
    const int64_t *value = parser->values;
    Values *values = line == PROCESS ? &parser->own : &parser->further;
    int64_t *place = reserve(values, (size_t)parser->width), *begin = place;
    if (!place)
        return 0;
    for (Py_ssize_t column = 0; column < parser->width; column++) {
        if (parser->kinds[column] == TEXT)
            continue;
        *place = *value++;
        place += line == PROCESS || parser->kinds[column] == OF_THREAD;
    }
    values->count += (size_t)(place - begin);
    return 1;
}

static int begin_process(Parser *parser, int64_t row)
{
    return add(&parser->first, row) && add_texts(parser);
}

/* Return where the lines that were taken end, or -1. */
static Py_ssize_t read_lines(Parser *parser, const char *data, Py_ssize_t size, Py_ssize_t at, Py_ssize_t most)
{
    Py_ssize_t begin = at, rows = 0;
    size_t own = 0, further = 0; /* numbers before the last process */
    const char *end;
    while ((end = memchr(data + at, '\n', (size_t)(size - at)))) {
        int line = read_line(parser, data + at, end);
        if (line == OTHER || (line == FURTHER && !parser->first.count))
            break;
        if (line == PROCESS) {
            if (rows >= most)
                return at;
            begin = at;
            own = parser->own.count;
            further = parser->further.count;
            if (!begin_process(parser, rows))
                return -1;
        }
        if (!add_numbers(parser, line))
            return -1;
        rows++;
        at = end + 1 - data;
    }
    if (parser->first.count) { /* the last process may go on */
        Py_ssize_t kept = (Py_ssize_t)--parser->first.count;
        parser->own.count = own;
        parser->further.count = further;
        Values *words = &parser->with_words;
        words->count -= words->count && words->at[words->count - 1] == kept;
        for (Py_ssize_t number = 0; number < parser->texts; number++)
            if (PyList_SetSlice(PyList_GetItem(parser->lists, number), kept, kept + 1, NULL) < 0)
                return -1;
    }
    return begin;
}

static int prepare(Parser *parser)
{
    for (Py_ssize_t column = 0; column < parser->width; column++)
        parser->texts += parser->kinds[column] == TEXT;
    size_t room = (size_t)parser->width + 1;
    parser->cells = calloc(room, sizeof *parser->cells);
    parser->before = calloc(room, sizeof *parser->before);
    parser->values = calloc(room, sizeof *parser->values);
    parser->last = calloc(room, sizeof *parser->last);
    if (!parser->cells || !parser->before || !parser->values || !parser->last) {
        PyErr_NoMemory();
        return 0;
    }
    parser->lists = PyList_New(0);
    for (Py_ssize_t number = 0; parser->lists && number < parser->texts; number++) {
        PyObject *list = PyList_New(0);
        if (!list || PyList_Append(parser->lists, list) < 0)
            Py_CLEAR(parser->lists);
        Py_XDECREF(list);
    }
    return parser->lists != NULL;
}

PyObject *joblens_parse_rows(PyObject *self, PyObject *arguments)
{
    const char *data;
    Py_ssize_t size, at, until, most;
    Parser parser = {0};
    PyObject *found = NULL;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "y#nny#ny#", &data, &size, &at, &until, &parser.kinds, &parser.width, &most,
                          &parser.words, &parser.room))
        return NULL;
    size = until < size ? until : size;
    joblens_mark_words(parser.pairs, parser.words, parser.room);
    if (at < 0 || at > size)
        PyErr_SetString(PyExc_ValueError, "a place outside of the data");
    else if (prepare(&parser) && (at = read_lines(&parser, data, size, at, most)) >= 0)
        found = Py_BuildValue(
            "nOy#y#y#y#", at, parser.lists, (char *)parser.own.at, (Py_ssize_t)(parser.own.count * sizeof(int64_t)),
            (char *)parser.further.at, (Py_ssize_t)(parser.further.count * sizeof(int64_t)), (char *)parser.first.at,
            (Py_ssize_t)(parser.first.count * sizeof(int64_t)), (char *)parser.with_words.at,
            (Py_ssize_t)(parser.with_words.count * sizeof(int64_t)));
    Py_XDECREF(parser.lists);
    free(parser.cells);
    free(parser.before);
    free(parser.values);
    free(parser.last);
    free(parser.own.at);
    free(parser.further.at);
    free(parser.first.at);
    free(parser.with_words.at);
    return found;
}
