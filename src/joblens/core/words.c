/* Texts with any of some words, upper case or not: command lines that may have a secret.
 *
 * For joblens.core.secrets, and for csv_rows.c. Most texts have none, so that only pairs of letters are looked at that
 * a word begins with.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x03090000 /* one library for all later versions of Python */
#include <Python.h>

#include <string.h>

#define PAIRS (1 << 16)

static int lower(int letter)
{
    return letter >= 'A' && letter <= 'Z' ? letter - 'A' + 'a' : letter;
}

static int upper(int letter)
{
    return letter >= 'a' && letter <= 'z' ? letter - 'a' + 'A' : letter;
}

static void mark(unsigned char *pairs, const char *word)
{
    const int heads[] = {*word, upper(*word)}, seconds[] = {word[1], upper(word[1])};
    for (int number = 0; number < 4; number++) {
        unsigned char *row = pairs + 256 * (unsigned char)heads[number / 2];
        if (word[1])
            row[(unsigned char)seconds[number % 2]] = 1;
        else
            memset(row, 1, 256);
    }
}

/* Mark the first two letters of all words, of which each ends in a zero byte, in lower case. */
void joblens_mark_words(unsigned char *pairs, const char *words, Py_ssize_t room)
{
    memset(pairs, 0, PAIRS);
    for (const char *word = words; word < words + room; word += strlen(word) + 1)
        mark(pairs, word);
}

static int begins_with(const char *text, const char *end, const char *word)
{
    for (; *word; text++, word++)
        if (text == end || lower(*text) != *word)
            return 0;
    return 1;
}

/* Return where the first word begins, or NULL. A byte after the end is read. */
const char *joblens_find_word(const char *text, const char *end, const unsigned char *pairs, const char *words,
                              Py_ssize_t room)
{
    for (; text < end; text++)
        if (pairs[256 * (unsigned char)*text + (unsigned char)text[1]])
            for (const char *word = words; word < words + room; word += strlen(word) + 1)
                if (begins_with(text, end, word))
                    return text;
    return NULL;
}

PyObject *joblens_find_words(PyObject *self, PyObject *arguments)
{
    const char *texts, *words;
    unsigned char pairs[PAIRS];
    Py_ssize_t size, room;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "y#y#", &texts, &size, &words, &room))
        return NULL;
    joblens_mark_words(pairs, words, room);
    PyObject *found = PyList_New(0);
    const char *end = texts + size, *begin = texts, *at = texts, *next; /* of this text, and the one after it */
    long number = 0;
    while (found && at && (at = joblens_find_word(at, end, pairs, words, room))) {
        for (; (next = memchr(begin, 0, (size_t)(at - begin))); begin = next + 1)
            number++;
        PyObject *it = PyLong_FromLong(number);
        if (!it || PyList_Append(found, it) < 0)
            Py_CLEAR(found);
        Py_XDECREF(it);
        at = memchr(at, 0, (size_t)(end - at));
    }
    return found;
}
