/* mixing.py of rooms: how loud a sound is, and the sum of several that need not be limited. */

#include "native.h"

PyObject *mean_square(PyObject *module, PyObject *pcm) {
    (void)module;
    Py_buffer view;
    if (!view_pcm(pcm, &view))
        return NULL;
    const int16_t *sound = view.buf;
    const Py_ssize_t samples = view.len / 2;
    int64_t sum = 0;
    for (Py_ssize_t i = 0; i < samples; i++)
        sum += (int32_t)sound[i] * sound[i];
    PyBuffer_Release(&view);
    return PyFloat_FromDouble(samples ? (double)sum / (double)samples : 0.0);
}

#define MAX_SOUNDS 128 /* of 16 bits, so that no sum overflows */

/* None if a sample of the sum is beyond the ceiling, there are more samples than a tick has, or the
   sounds differ in length. */
PyObject *mix_unlimited(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    if (given != 2 || !PyList_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "takes a list of sounds and a ceiling");
        return NULL;
    }
    const long ceiling = PyLong_AsLong(args[1]);
    if (ceiling == -1 && PyErr_Occurred())
        return NULL;
    const Py_ssize_t count = PyList_Size(args[0]);
    int32_t total[SAMPLES_OUT] = {0};
    Py_ssize_t samples = -1;
    if (count > MAX_SOUNDS)
        Py_RETURN_NONE;
    for (Py_ssize_t n = 0; n < count; n++) {
        Py_buffer view;
        if (!view_pcm(PyList_GetItem(args[0], n), &view))
            return NULL;
        const Py_ssize_t length = view.len / 2;
        const bool fits = length <= SAMPLES_OUT && (samples == -1 || samples == length);
        const int16_t *sound = view.buf;
        for (Py_ssize_t i = 0; fits && i < length; i++)
            total[i] += sound[i];
        samples = length;
        PyBuffer_Release(&view);
        if (!fits)
            Py_RETURN_NONE;
    }
    int32_t peak = 0;
    for (Py_ssize_t i = 0; i < samples; i++) {
        int32_t magnitude = total[i] < 0 ? -total[i] : total[i];
        peak = magnitude > peak ? magnitude : peak;
    }
    if (samples < 0 || peak > ceiling || peak > INT16_MAX)
        Py_RETURN_NONE;
    int16_t *out;
    PyObject *mix = new_pcm(samples, &out);
    for (Py_ssize_t i = 0; mix != NULL && i < samples; i++)
        out[i] = (int16_t)total[i];
    return mix;
}
