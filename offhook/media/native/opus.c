/* Opus of opus.py: the same functions of the same libopus, on the same states. */

#include "native.h"

PyTypeObject *opus_decoder_type, *opus_encoder_type;

#define STEREO 0x04 /* of the first byte, RFC 6716 section 3.1 */

/* A state of libopus; NULL with an exception set. */
static void *state_of(PyObject *memory) {
    PyObject *number = PyObject_GetAttrString(memory, "address");
    void *state = number == NULL ? NULL : pointer_of(number);
    Py_XDECREF(number);
    return state;
}

/* --- decoder --- */

static int decoder_init(PyObject *self, PyObject *args, PyObject *keywords) {
    OpusDecoder *decoder = (OpusDecoder *)self;
    PyObject *memory, *decode, *count;
    static char *names[] = {"memory", "decode", "count", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOO", names, &memory, &decode, &count))
        return -1;
    void *state = state_of(memory);
    if (state == NULL || pointer_of(decode) == NULL || pointer_of(count) == NULL)
        return -1;
    *(void **)&decoder->decode = pointer_of(decode);
    *(void **)&decoder->count = pointer_of(count);
    decoder->state = state;
    replace(&decoder->memory, Py_NewRef(memory));
    return 0;
}

static void decoder_dealloc(PyObject *self) {
    Py_XDECREF(((OpusDecoder *)self)->memory);
    free_object(self);
}

int opus_packet_samples(const OpusDecoder *decoder, const uint8_t *payload, Py_ssize_t bytes) {
    if (bytes < 1 || bytes > INT32_MAX || decoder->memory == NULL || payload[0] & STEREO)
        return 0;
    int samples = decoder->count(payload, (int32_t)bytes, RATE_IN);
    return samples > 0 ? samples : 0;
}

bool decode_opus(OpusDecoder *decoder, const uint8_t *payload, Py_ssize_t bytes, int samples,
                 int16_t *out) {
    int decoded;
    Py_BEGIN_ALLOW_THREADS
    decoded = decoder->decode(decoder->state, payload, (int32_t)bytes, out, samples, 0);
    Py_END_ALLOW_THREADS
    if (decoded < 0)
        decoder->failure = decoded;
    return decoded == samples;
}

static PyObject *decoder_take_failure(PyObject *self, PyObject *none) {
    int failure = ((OpusDecoder *)self)->failure;
    ((OpusDecoder *)self)->failure = 0;
    return PyLong_FromLong(failure);
}

static PyMethodDef decoder_methods[] = {
    {"take_failure", decoder_take_failure, METH_NOARGS,
     "What libopus said of the payload that is decoded next, which it has seen; 0: nothing."},
    {NULL},
};

static PyType_Slot decoder_slots[] = {
    {Py_tp_doc, "Decodes one Opus stream in mono."},
    {Py_tp_init, decoder_init},
    {Py_tp_dealloc, decoder_dealloc},
    {Py_tp_methods, decoder_methods},
    {0},
};

PyType_Spec opus_decoder_spec = {"offhook.media.native._native.OpusDecoder", sizeof(OpusDecoder), 0,
                                 Py_TPFLAGS_DEFAULT, decoder_slots};

/* --- encoder --- */

static int encoder_init(PyObject *self, PyObject *args, PyObject *keywords) {
    OpusEncoder *encoder = (OpusEncoder *)self;
    PyObject *memory, *encode;
    static char *names[] = {"memory", "encode", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO", names, &memory, &encode))
        return -1;
    void *state = state_of(memory);
    if (state == NULL || pointer_of(encode) == NULL)
        return -1;
    *(void **)&encoder->encode = pointer_of(encode);
    encoder->state = state;
    replace(&encoder->memory, Py_NewRef(memory));
    return 0;
}

static void encoder_dealloc(PyObject *self) {
    Py_XDECREF(((OpusEncoder *)self)->memory);
    free_object(self);
}

int encode_opus(OpusEncoder *encoder, const int16_t *pcm, uint8_t *out) {
    int bytes;
    if (encoder->memory == NULL)
        return 0;
    Py_BEGIN_ALLOW_THREADS
    bytes = encoder->encode(encoder->state, pcm, SAMPLES_OUT, out, OPUS_BYTES);
    Py_END_ALLOW_THREADS
    return bytes;
}

static PyType_Slot encoder_slots[] = {
    {Py_tp_doc, "Encodes one Opus stream, a tick a packet."},
    {Py_tp_init, encoder_init},
    {Py_tp_dealloc, encoder_dealloc},
    {0},
};

PyType_Spec opus_encoder_spec = {"offhook.media.native._native.OpusEncoder", sizeof(OpusEncoder), 0,
                                 Py_TPFLAGS_DEFAULT, encoder_slots};
