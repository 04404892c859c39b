/* The compiled path of a packet. The Python classes of the same names are the specification: every
   function here must return what theirs does, to the last sample and counter, and leaves whatever
   is not the usual case to them. Constants are compared by tests/media/native. */

#ifndef OFFHOOK_NATIVE_H
#define OFFHOOK_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <math.h>
#include <stdint.h>
#include <stdbool.h>
#include <string.h>

#define RATE_IN 16000
#define SAMPLES_IN 320
#define SAMPLES_OUT 480

/* resample.py */
typedef struct {
    PyObject_HEAD
    int up, down, history;
    int width;      /* of the taps that are not zero */
    int *starts;    /* [up], where in the window they begin */
    double *taps;   /* [up][width], each row one phase */
    double *past;   /* [history], the end of the input before */
    double *buffer; /* [history + room], and `width` more, for reading beyond */
    int room;
} Fir;

/* Resamples `samples` samples, a multiple of `down`, into `out`. False without memory. */
bool fir_process(Fir *fir, const int16_t *pcm, int samples, int16_t *out);

/* conceal.py */
#define HISTORY 480
typedef struct {
    PyObject_HEAD
    long long concealed;
    int16_t sound[HISTORY];
} History;

void history_append(History *history, const int16_t *pcm, Py_ssize_t samples);

/* g711.py */
#define G711_RATE 8000

typedef struct {
    PyObject_HEAD
    int16_t levels[256];
    Fir *fir;
    History *history;
} G711Decoder;

/* Decodes into 2 * bytes samples, without concealment. False without memory. */
bool g711_decode(G711Decoder *decoder, const uint8_t *payload, Py_ssize_t bytes, int16_t *out);

typedef struct {
    PyObject_HEAD
    uint8_t *codes; /* [65536] */
    Fir *fir;
} G711Encoder;

/* Encodes 3 * bytes samples at 24 kHz. False without memory. */
bool g711_encode(G711Encoder *encoder, const int16_t *pcm, Py_ssize_t bytes, uint8_t *out);

/* A new numpy array of int16, and its samples. NULL with an exception set. */
PyObject *new_pcm(Py_ssize_t samples, int16_t **data);
/* Reads a contiguous array of int16; the caller releases the view. False with an exception set. */
bool view_pcm(PyObject *object, Py_buffer *view);

/* Frees an object of a heap type. */
void free_object(PyObject *self);

#define METHOD(function) ((PyCFunction)(void (*)(void))(function))

extern PyType_Spec fir_spec, history_spec, g711_decoder_spec, g711_encoder_spec;
extern PyTypeObject *fir_type, *history_type;

#endif
