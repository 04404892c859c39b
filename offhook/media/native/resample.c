/* Resampler.process of resample.py: the polyphase filter, whose taps Python computes. */

#include "native.h"

PyTypeObject *fir_type;

typedef double Four __attribute__((vector_size(32)));

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__GLIBC__)
#define FASTEST __attribute__((target_clones("avx2", "default")))
#else
#define FASTEST
#endif

FASTEST static void filter(const Fir *fir, const double *sound, int blocks, int16_t *out) {
    const int width = fir->width, up = fir->up;
    for (int block = 0; block < blocks; block++, sound += fir->down) {
        for (int phase = 0; phase < up; phase++) {
            const double *taps = fir->taps + (size_t)phase * width;
            const double *window = sound + fir->starts[phase];
            Four a = {0}, b = {0}, x, w;
            for (int i = 0; i < width; i += 8) {
                memcpy(&x, window + i, sizeof x);
                memcpy(&w, taps + i, sizeof w);
                a += x * w;
                memcpy(&x, window + i + 4, sizeof x);
                memcpy(&w, taps + i + 4, sizeof w);
                b += x * w;
            }
            a += b;
            double sum = rint((a[0] + a[1]) + (a[2] + a[3]));
            *out++ = (int16_t)(sum < -32768.0 ? -32768.0 : sum > 32767.0 ? 32767.0 : sum);
        }
    }
}

static bool make_room(Fir *fir, int samples) {
    if (fir->buffer != NULL && samples <= fir->room)
        return true;
    size_t size = (size_t)fir->history + samples + fir->width;
    double *buffer = PyMem_Realloc(fir->buffer, sizeof(double) * size);
    if (buffer == NULL)
        return false;
    memset(buffer, 0, sizeof(double) * size);
    fir->buffer = buffer;
    fir->room = samples;
    return true;
}

/* What remains of a block that is not a multiple of `down` gives no sound, only history. */
bool fir_process(Fir *fir, const int16_t *pcm, int samples, int16_t *out) {
    if (!make_room(fir, samples))
        return false;
    double *buffer = fir->buffer;
    const size_t history = sizeof(double) * fir->history;
    memcpy(buffer, fir->past, history);
    for (int i = 0; i < samples; i++)
        buffer[fir->history + i] = pcm[i];
    filter(fir, buffer, samples / fir->down, out);
    memcpy(fir->past, buffer + samples, history);
    return true;
}

/* Keeps of each row what is not zero, in rows of one width, a multiple of eight. */
static bool pack_taps(Fir *fir, const double *taps, int window) {
    fir->starts = PyMem_Calloc(fir->up, sizeof(int));
    if (fir->starts == NULL)
        return false;
    for (int phase = 0; phase < fir->up; phase++) {
        const double *row = taps + (size_t)phase * window;
        int first = 0, end = window;
        while (first < window && row[first] == 0.0)
            first++;
        while (end > first && row[end - 1] == 0.0)
            end--;
        fir->starts[phase] = first;
        if (end - first > fir->width)
            fir->width = end - first;
    }
    fir->width = (fir->width + 7) & ~7;
    fir->taps = PyMem_Calloc((size_t)fir->up * fir->width + 1, sizeof(double));
    if (fir->taps == NULL)
        return false;
    for (int phase = 0; phase < fir->up; phase++) {
        int first = fir->starts[phase], count = window - first;
        memcpy(fir->taps + (size_t)phase * fir->width, taps + (size_t)phase * window + first,
               sizeof(double) * (count < fir->width ? count : fir->width));
    }
    return true;
}

static int fir_init(PyObject *self, PyObject *args, PyObject *keywords) {
    Fir *fir = (Fir *)self;
    Py_buffer taps;
    int up, down;
    static char *names[] = {"taps", "up", "down", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "y*ii", names, &taps, &up, &down))
        return -1;
    Py_ssize_t count = taps.len / (Py_ssize_t)sizeof(double);
    if (fir->past != NULL || up < 1 || down < 1 || count > 1 << 24 ||
        count < (Py_ssize_t)up * down || count % up) {
        PyBuffer_Release(&taps);
        PyErr_SetString(PyExc_ValueError, "taps do not fit the rates");
        return -1;
    }
    int window = (int)(count / up);
    fir->up = up;
    fir->down = down;
    fir->history = window - down;
    bool packed = pack_taps(fir, taps.buf, window);
    PyBuffer_Release(&taps);
    fir->past = PyMem_Calloc((size_t)fir->history + 1, sizeof(double));
    if (!packed || fir->past == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

static void fir_dealloc(PyObject *self) {
    Fir *fir = (Fir *)self;
    PyMem_Free(fir->starts);
    PyMem_Free(fir->taps);
    PyMem_Free(fir->past);
    PyMem_Free(fir->buffer);
    free_object(self);
}

static PyObject *fir_method_process(PyObject *self, PyObject *pcm) {
    Fir *fir = (Fir *)self;
    Py_buffer view;
    if (fir->past == NULL) {
        PyErr_SetString(PyExc_ValueError, "not initialised");
        return NULL;
    }
    if (!view_pcm(pcm, &view))
        return NULL;
    Py_ssize_t samples = view.len / 2;
    int16_t *out;
    PyObject *sound = NULL;
    if (samples > INT_MAX / 8)
        PyErr_SetString(PyExc_ValueError, "the block is too long");
    else if ((sound = new_pcm(samples / fir->down * fir->up, &out)) != NULL &&
             !fir_process(fir, view.buf, (int)samples, out)) {
        Py_CLEAR(sound);
        PyErr_NoMemory();
    }
    PyBuffer_Release(&view);
    return sound;
}

static PyMethodDef methods[] = {
    {"process", fir_method_process, METH_O, "Resample a block."},
    {NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "The filter of one resampled stream: `taps` are float64[up][window]."},
    {Py_tp_init, fir_init},
    {Py_tp_dealloc, fir_dealloc},
    {Py_tp_methods, methods},
    {0},
};

PyType_Spec fir_spec = {
    "offhook.media.native._native.Fir", sizeof(Fir), 0, Py_TPFLAGS_DEFAULT, slots};
