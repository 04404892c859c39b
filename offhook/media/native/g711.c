/* G.711 of g711.py, and the history of decoded audio of conceal.py. */

#include "native.h"

PyTypeObject *history_type, *g711_decoder_type, *g711_encoder_type;

#define PIECE 480 /* samples at 8 kHz, worked on at a time */

/* --- History --- */

void history_append(History *history, const int16_t *pcm, Py_ssize_t samples) {
    if (samples >= HISTORY) {
        memcpy(history->sound, pcm + samples - HISTORY, sizeof history->sound);
        return;
    }
    memmove(history->sound, history->sound + samples, sizeof(int16_t) * (HISTORY - samples));
    memcpy(history->sound + HISTORY - samples, pcm, sizeof(int16_t) * samples);
}

PyObject *history_continued(History *history, PyObject *pcm, const int16_t *data,
                            Py_ssize_t samples) {
    if (history->concealed) {
        PyObject *joined = PyObject_CallMethod((PyObject *)history, "process", "O", pcm);
        Py_DECREF(pcm);
        return joined;
    }
    history_append(history, data, samples);
    return pcm;
}

static PyObject *history_method_append(PyObject *self, PyObject *pcm) {
    Py_buffer view;
    if (!view_pcm(pcm, &view))
        return NULL;
    history_append((History *)self, view.buf, view.len / 2);
    PyBuffer_Release(&view);
    Py_RETURN_NONE;
}

static PyObject *history_method_history(PyObject *self, PyObject *none) {
    int16_t *data;
    PyObject *pcm = new_pcm(HISTORY, &data);
    if (pcm != NULL)
        memcpy(data, ((History *)self)->sound, sizeof ((History *)self)->sound);
    return pcm;
}

static PyMethodDef history_methods[] = {
    {"_append_history", history_method_append, METH_O, "Append decoded or concealed audio."},
    {"_history", history_method_history, METH_NOARGS, "The last HISTORY samples."},
    {NULL},
};

static PyMemberDef history_members[] = {
    {"_concealed", T_LONGLONG, offsetof(History, concealed)},
    {NULL},
};

static PyType_Slot history_slots[] = {
    {Py_tp_doc, "The end of a decoded stream."},
    {Py_tp_dealloc, free_object},
    {Py_tp_methods, history_methods},
    {Py_tp_members, history_members},
    {0},
};

PyType_Spec history_spec = {"offhook.media.native._native.History", sizeof(History), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, history_slots};

/* --- decoder --- */

static int no_object(const char *what) {
    PyErr_Format(PyExc_TypeError, "%s of another kind", what);
    return -1;
}

static int decoder_init(PyObject *self, PyObject *args, PyObject *keywords) {
    G711Decoder *decoder = (G711Decoder *)self;
    PyObject *levels, *fir, *history;
    Py_buffer view;
    static char *names[] = {"levels", "fir", "history", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOO", names, &levels, &fir, &history))
        return -1;
    if (decoder->fir != NULL || !PyObject_TypeCheck(fir, fir_type) || ((Fir *)fir)->up != 2 ||
        ((Fir *)fir)->down != 1)
        return no_object("filter");
    if (!PyObject_TypeCheck(history, history_type))
        return no_object("history");
    if (!view_pcm(levels, &view))
        return -1;
    if (view.len != sizeof decoder->levels) {
        PyBuffer_Release(&view);
        return no_object("table");
    }
    memcpy(decoder->levels, view.buf, sizeof decoder->levels);
    PyBuffer_Release(&view);
    decoder->fir = (Fir *)Py_NewRef(fir);
    decoder->history = (History *)Py_NewRef(history);
    return 0;
}

static void decoder_dealloc(PyObject *self) {
    Py_XDECREF((PyObject *)((G711Decoder *)self)->fir);
    Py_XDECREF((PyObject *)((G711Decoder *)self)->history);
    free_object(self);
}

bool g711_decode(G711Decoder *decoder, const uint8_t *payload, Py_ssize_t bytes, int16_t *out) {
    int16_t sound[PIECE];
    for (int count; bytes > 0; payload += count, out += 2 * count, bytes -= count) {
        count = bytes < PIECE ? (int)bytes : PIECE;
        for (int i = 0; i < count; i++)
            sound[i] = decoder->levels[payload[i]];
        if (!fir_process(decoder->fir, sound, count, out))
            return false;
    }
    return true;
}

static PyObject *decoder_decode(PyObject *self, PyObject *payload) {
    G711Decoder *decoder = (G711Decoder *)self;
    char *data;
    Py_ssize_t bytes;
    int16_t *out;
    if (decoder->fir == NULL) {
        PyErr_SetString(PyExc_ValueError, "not initialised");
        return NULL;
    }
    if (PyBytes_AsStringAndSize(payload, &data, &bytes) < 0)
        return NULL;
    PyObject *pcm = new_pcm(2 * bytes, &out);
    if (pcm == NULL)
        return NULL;
    if (!g711_decode(decoder, (uint8_t *)data, bytes, out)) {
        Py_DECREF(pcm);
        return PyErr_NoMemory();
    }
    return history_continued(decoder->history, pcm, out, 2 * bytes);
}

static PyMethodDef decoder_methods[] = {
    {"decode", decoder_decode, METH_O, "Decode one payload to 16 kHz."},
    {NULL},
};

static PyType_Slot decoder_slots[] = {
    {Py_tp_doc, "Decodes one G.711 stream; `levels` are the samples of the law's codes."},
    {Py_tp_init, decoder_init},
    {Py_tp_dealloc, decoder_dealloc},
    {Py_tp_methods, decoder_methods},
    {0},
};

PyType_Spec g711_decoder_spec = {"offhook.media.native._native.G711Decoder", sizeof(G711Decoder), 0,
                                 Py_TPFLAGS_DEFAULT, decoder_slots};

/* --- encoder --- */

static int encoder_init(PyObject *self, PyObject *args, PyObject *keywords) {
    G711Encoder *encoder = (G711Encoder *)self;
    PyObject *fir;
    Py_buffer codes;
    static char *names[] = {"codes", "fir", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "y*O", names, &codes, &fir))
        return -1;
    if (codes.len != 65536 || encoder->fir != NULL || !PyObject_TypeCheck(fir, fir_type) ||
        ((Fir *)fir)->up != 1 || ((Fir *)fir)->down != 3) {
        PyBuffer_Release(&codes);
        return no_object("filter or table");
    }
    encoder->codes = codes;
    encoder->fir = (Fir *)Py_NewRef(fir);
    return 0;
}

static void encoder_dealloc(PyObject *self) {
    PyBuffer_Release(&((G711Encoder *)self)->codes);
    Py_XDECREF((PyObject *)((G711Encoder *)self)->fir);
    free_object(self);
}

bool g711_encode(G711Encoder *encoder, const int16_t *pcm, Py_ssize_t bytes, uint8_t *out) {
    int16_t sound[PIECE];
    const uint8_t *codes = encoder->codes.buf;
    for (int count; bytes > 0; pcm += 3 * count, out += count, bytes -= count) {
        count = bytes < PIECE ? (int)bytes : PIECE;
        if (!fir_process(encoder->fir, pcm, 3 * count, sound))
            return false;
        for (int i = 0; i < count; i++)
            out[i] = codes[(uint16_t)sound[i]];
    }
    return true;
}

static PyObject *encoder_encode(PyObject *self, PyObject *pcm) {
    G711Encoder *encoder = (G711Encoder *)self;
    Py_buffer view;
    PyObject *payload = NULL;
    if (encoder->fir == NULL) {
        PyErr_SetString(PyExc_ValueError, "not initialised");
        return NULL;
    }
    if (!view_pcm(pcm, &view))
        return NULL;
    if (view.len % 6)
        PyErr_SetString(PyExc_ValueError, "the block is not a whole number of periods");
    else if ((payload = PyBytes_FromStringAndSize(NULL, view.len / 6)) != NULL &&
             !g711_encode(encoder, view.buf, view.len / 6, (uint8_t *)PyBytes_AsString(payload))) {
        Py_CLEAR(payload);
        PyErr_NoMemory();
    }
    PyBuffer_Release(&view);
    return payload;
}

static PyMethodDef encoder_methods[] = {
    {"encode", encoder_encode, METH_O, "Encode one packet of 24 kHz."},
    {NULL},
};

static PyType_Slot encoder_slots[] = {
    {Py_tp_doc, "Encodes one G.711 stream; `codes` are the law's codes of all samples."},
    {Py_tp_init, encoder_init},
    {Py_tp_dealloc, encoder_dealloc},
    {Py_tp_methods, encoder_methods},
    {0},
};

PyType_Spec g711_encoder_spec = {"offhook.media.native._native.G711Encoder", sizeof(G711Encoder), 0,
                                 Py_TPFLAGS_DEFAULT, encoder_slots};
