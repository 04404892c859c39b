/* AudioSender of sender.py: a packet of 20 ms in the codec that was used before. */

#include "native.h"

typedef struct {
    PyObject_HEAD
    PyObject *encoder; /* G711Encoder or None */
    PyObject *silence, *timestamp_at;
    long long ssrc, sequence_number, timestamp, packets, octets;
    long long payload_type, step, samples, quiet, unsent, silence_packets;
    char dtx, gap, settled;
} Sender;

#define HEADER_BYTES 12

static void put_header(const Sender *s, uint32_t timestamp, uint8_t *out) {
    const uint32_t ssrc = (uint32_t)s->ssrc;
    const uint8_t header[HEADER_BYTES] = {
        0x80,
        (uint8_t)((s->gap ? 0x80 : 0) | s->payload_type),
        (uint8_t)(s->sequence_number >> 8),
        (uint8_t)s->sequence_number,
        (uint8_t)(timestamp >> 24),
        (uint8_t)(timestamp >> 16),
        (uint8_t)(timestamp >> 8),
        (uint8_t)timestamp,
        (uint8_t)(ssrc >> 24),
        (uint8_t)(ssrc >> 16),
        (uint8_t)(ssrc >> 8),
        (uint8_t)ssrc,
    };
    memcpy(out, header, sizeof header);
}

/* The packet with room for the payload. */
static PyObject *new_packet(const Sender *s, Py_ssize_t payload, uint8_t **at) {
    PyObject *packet = PyBytes_FromStringAndSize(NULL, HEADER_BYTES + payload);
    if (packet != NULL) {
        *at = (uint8_t *)PyBytes_AsString(packet);
        put_header(s, (uint32_t)(s->timestamp + s->step), *at);
        *at += HEADER_BYTES;
    }
    return packet;
}

static PyObject *sound_packet(Sender *s, PyObject *pcm) {
    Py_buffer view;
    uint8_t *payload;
    if (!view_pcm(pcm, &view))
        return NULL;
    PyObject *packet = NULL;
    if (view.len != 2 * SAMPLES_OUT)
        PyErr_SetString(PyExc_ValueError, "a tick has 480 samples");
    else if ((packet = new_packet(s, SAMPLES_OUT / 3, &payload)) != NULL &&
             !g711_encode((G711Encoder *)s->encoder, view.buf, SAMPLES_OUT / 3, payload)) {
        Py_CLEAR(packet);
        PyErr_NoMemory();
    }
    PyBuffer_Release(&view);
    if (packet != NULL) {
        s->settled = false;
        s->quiet = 0;
    }
    return packet;
}

static PyObject *silent_packet(Sender *s) {
    char *silence;
    Py_ssize_t size;
    uint8_t *payload;
    if (PyBytes_AsStringAndSize(s->silence, &silence, &size) < 0)
        return NULL;
    PyObject *packet = new_packet(s, size, &payload);
    if (packet != NULL)
        memcpy(payload, silence, size);
    return packet;
}

static PyObject *method_steady(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    Sender *s = (Sender *)self;
    if (given != 2) {
        PyErr_SetString(PyExc_TypeError, "_steady(pcm, now)");
        return NULL;
    }
    PyObject *pcm = args[0];
    if (s->dtx || s->samples != SAMPLES_OUT || s->encoder == NULL ||
        Py_TYPE(s->encoder) != g711_encoder_type)
        Py_RETURN_NONE;
    if (pcm == Py_None && (s->quiet < s->silence_packets || !s->settled || s->silence == NULL))
        Py_RETURN_NONE;
    PyObject *packet = pcm == Py_None ? silent_packet(s) : sound_packet(s, pcm);
    if (packet == NULL)
        return NULL;
    s->timestamp = (uint32_t)(s->timestamp + s->step);
    replace(&s->timestamp_at, Py_NewRef(args[1]));
    s->gap = false;
    s->unsent = 0;
    s->sequence_number = (uint16_t)(s->sequence_number + 1);
    s->packets++;
    s->octets += PyBytes_Size(packet) - HEADER_BYTES;
    return packet;
}

static void sender_dealloc(PyObject *self) {
    Sender *s = (Sender *)self;
    Py_XDECREF(s->encoder);
    Py_XDECREF(s->silence);
    Py_XDECREF(s->timestamp_at);
    free_object(self);
}

static PyMethodDef methods[] = {
    {"_steady", METHOD(method_steady), METH_FASTCALL, "The next packet, if it is the usual one."},
    {NULL},
};

static PyMemberDef members[] = {
    {"ssrc", T_LONGLONG, offsetof(Sender, ssrc)},
    {"sequence_number", T_LONGLONG, offsetof(Sender, sequence_number)},
    {"timestamp", T_LONGLONG, offsetof(Sender, timestamp)},
    {"timestamp_at", T_OBJECT, offsetof(Sender, timestamp_at)},
    {"packets", T_LONGLONG, offsetof(Sender, packets)},
    {"octets", T_LONGLONG, offsetof(Sender, octets)},
    {"dtx", T_BOOL, offsetof(Sender, dtx)},
    {"_compiled", T_OBJECT, offsetof(Sender, encoder)},
    {"_payload_type", T_LONGLONG, offsetof(Sender, payload_type)},
    {"_step", T_LONGLONG, offsetof(Sender, step)},
    {"_samples", T_LONGLONG, offsetof(Sender, samples)},
    {"_quiet", T_LONGLONG, offsetof(Sender, quiet)},
    {"_unsent", T_LONGLONG, offsetof(Sender, unsent)},
    {"_silence_packets", T_LONGLONG, offsetof(Sender, silence_packets)},
    {"_silence", T_OBJECT, offsetof(Sender, silence)},
    {"_gap", T_BOOL, offsetof(Sender, gap)},
    {"_settled", T_BOOL, offsetof(Sender, settled)},
    {NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "What AudioSender keeps, and its usual packet."},
    {Py_tp_dealloc, sender_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {0},
};

PyType_Spec sender_spec = {"offhook.media.native._native.Sender", sizeof(Sender), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots};
