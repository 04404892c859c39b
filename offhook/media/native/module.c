/* The module, and what its parts share. */

#include "native.h"

static PyObject *numpy_empty, *numpy_int16;

PyObject *new_pcm(Py_ssize_t samples, int16_t **data) {
    PyObject *count = PyLong_FromSsize_t(samples);
    if (count == NULL)
        return NULL;
    PyObject *pcm = PyObject_CallFunctionObjArgs(numpy_empty, count, numpy_int16, NULL);
    Py_DECREF(count);
    Py_buffer view;
    if (pcm == NULL || PyObject_GetBuffer(pcm, &view, PyBUF_SIMPLE | PyBUF_WRITABLE) < 0) {
        Py_XDECREF(pcm);
        return NULL;
    }
    *data = view.buf;
    PyBuffer_Release(&view); /* the array keeps its memory */
    return pcm;
}

bool view_pcm(PyObject *object, Py_buffer *view) {
    if (PyObject_GetBuffer(object, view, PyBUF_FORMAT | PyBUF_ND) < 0)
        return false;
    if (view->ndim == 1 && view->format != NULL && strcmp(view->format, "h") == 0)
        return true;
    PyBuffer_Release(view);
    PyErr_SetString(PyExc_TypeError, "not a one-dimensional array of int16");
    return false;
}

bool attribute_is(PyObject *of, const char *name, PyObject *object) {
    PyObject *value = PyObject_GetAttrString(of, name);
    Py_XDECREF(value);
    return value != NULL && value == object;
}

void *pointer_of(PyObject *number) {
    void *pointer = PyLong_AsVoidPtr(number);
    if (pointer == NULL && !PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "no address");
    return pointer;
}

void replace(PyObject **place, PyObject *object) {
    PyObject *before = *place;
    *place = object;
    Py_XDECREF(before);
}

void free_object(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **keep) {
    PyObject *type = PyType_FromSpec(spec);
    if (type == NULL)
        return -1;
    if (keep != NULL)
        *keep = (PyTypeObject *)Py_NewRef(type);
    int added = PyModule_AddObjectRef(module, strrchr(spec->name, '.') + 1, type);
    Py_DECREF(type);
    return added;
}

static PyMethodDef functions[] = {
    {"mean_square", mean_square, METH_O, "Mean square of a sound."},
    {"mix_unlimited", METHOD(mix_unlimited), METH_FASTCALL, "Adds sounds."},
    {"request_times", request_times_of, METH_O, "Has the kernel note when data arrives."},
    {"read_stream", METHOD(read_stream), METH_FASTCALL, "Reads a connection."},
    {"write_stream", METHOD(write_stream), METH_FASTCALL, "Writes to a connection."},
    {"use_types", jitter_use_types, METH_VARARGS, "Sets what JitterBuffer returns."},
    {NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", "What happens to each packet, compiled.", -1, functions};

/* Constants that must equal those of Python. */
static int add_constants(PyObject *module) {
    static const struct {
        const char *name;
        double value;
    } constants[] = {
        {"MIN_DELAY", MIN_DELAY},
        {"MAX_DELAY", MAX_DELAY},
        {"QUANTILE", QUANTILE},
        {"FORGET_FACTOR", FORGET_FACTOR},
        {"BUCKET", BUCKET},
        {"BUCKETS", BUCKETS},
        {"PRIOR_PACKETS", PRIOR_PACKETS},
        {"WINDOW", WINDOW},
        {"IDLE", IDLE},
        {"MAX_TIME_OFFSET", MAX_TIME_OFFSET},
        {"MAX_DROPOUT", MAX_DROPOUT},
        {"MAX_MISORDER", MAX_MISORDER},
        {"MAX_SPAN", MAX_SPAN},
        {"MAX_PACKETS", MAX_PACKETS},
        {"STILL_PACKETS", STILL_PACKETS},
        {"MAX_JITTER_STEP_S", MAX_JITTER_STEP_S},
        {"TOLERANCE", TOLERANCE},
        {"GOOD_FIT", GOOD_FIT},
        {"MIN_PERIOD", MIN_PERIOD},
        {"SAMPLES_10_MS", SAMPLES_10_MS},
        {"HISTORY", HISTORY},
        {"RATE_IN", RATE_IN},
        {"SAMPLES_IN", SAMPLES_IN},
        {"SAMPLES_OUT", SAMPLES_OUT},
        {"MAX_PACKET_BYTES", OPUS_BYTES},
        {"DTX_BYTES", DTX_BYTES},
        {"MAX_DATAGRAM_BYTES", DATAGRAM_BYTES},
        {"DRAIN_DATAGRAMS", DRAIN_DATAGRAMS},
        {"READY_PORTS", READY_PORTS},
        {"GAP_MS", GAP_MS},
        {"MAX_DIGITS", MAX_DIGITS},
        {"MAX_FIELDS", MAX_FIELDS},
        {"MAX_LEARNED_CHARS", MAX_LEARNED_CHARS},
    };
    PyObject *values = PyDict_New();
    for (size_t i = 0; values != NULL && i < sizeof constants / sizeof constants[0]; i++) {
        PyObject *value = PyFloat_FromDouble(constants[i].value);
        if (value == NULL || PyDict_SetItemString(values, constants[i].name, value) < 0)
            Py_CLEAR(values);
        Py_XDECREF(value);
    }
    int added = values == NULL ? -1 : PyModule_AddObjectRef(module, "CONSTANTS", values);
    Py_XDECREF(values);
    return added;
}

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *numpy = PyImport_ImportModule("numpy");
    if (numpy == NULL)
        return NULL;
    numpy_empty = PyObject_GetAttrString(numpy, "empty");
    PyObject *int16 = PyObject_GetAttrString(numpy, "int16");
    numpy_int16 = int16 == NULL ? NULL : PyObject_CallMethod(numpy, "dtype", "O", int16);
    Py_XDECREF(int16);
    Py_DECREF(numpy);
    base64_init();
    PyObject *module = PyModule_Create(&definition);
    if (numpy_empty == NULL || numpy_int16 == NULL || module == NULL ||
        add_type(module, &fir_spec, &fir_type) < 0 ||
        add_type(module, &history_spec, &history_type) < 0 ||
        add_type(module, &g711_decoder_spec, &g711_decoder_type) < 0 ||
        add_type(module, &g711_encoder_spec, &g711_encoder_type) < 0 ||
        add_type(module, &g722_decoder_spec, &g722_decoder_type) < 0 ||
        add_type(module, &g722_encoder_spec, &g722_encoder_type) < 0 ||
        add_type(module, &jitter_spec, &jitter_type) < 0 ||
        add_type(module, &opus_decoder_spec, &opus_decoder_type) < 0 ||
        add_type(module, &opus_encoder_spec, &opus_encoder_type) < 0 ||
        add_type(module, &reception_spec, &reception_type) < 0 ||
        add_type(module, &stats_spec, &stats_type) < 0 ||
        add_type(module, &receiver_spec, &receiver_type) < 0 ||
        add_type(module, &packetizer_spec, &packetizer_type) < 0 ||
        add_type(module, &media_reader_spec, &media_reader_type) < 0 ||
        add_type(module, &media_writer_spec, NULL) < 0 ||
        add_type(module, &srtp_spec, &srtp_type) < 0 ||
        add_type(module, &inbound_spec, &inbound_type) < 0 ||
        add_type(module, &shared_port_spec, NULL) < 0 ||
        add_type(module, &port_spec, &port_type) < 0 ||
        add_type(module, &ports_spec, NULL) < 0 || add_type(module, &sender_spec, NULL) < 0 ||
        add_constants(module) < 0) {
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
