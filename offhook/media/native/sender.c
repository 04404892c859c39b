/* AudioSender of sender.py: a packet of 20 ms in the codec that was used before. */

#include "native.h"

typedef struct {
    PyObject_HEAD
    PyObject *encoder; /* G711Encoder, G722Encoder, OpusEncoder or None */
    PyObject *silence, *timestamp_at;
    long long ssrc, sequence_number, timestamp, packets, octets;
    long long payload_type, step, samples, quiet, unsent, silence_packets, keep_alive;
    char dtx, gap, settled, talkspurt;
} Sender;

#define HEADER_BYTES 12

static void put_header(const Sender *s, uint32_t timestamp, bool marker, uint8_t *out) {
    const uint32_t ssrc = (uint32_t)s->ssrc;
    const uint8_t header[HEADER_BYTES] = {
        0x80,
        (uint8_t)((marker ? 0x80 : 0) | s->payload_type),
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

/* A packet with this payload, at the tick that begins. */
static PyObject *new_packet(const Sender *s, const void *payload, Py_ssize_t bytes, bool marker) {
    PyObject *packet = PyBytes_FromStringAndSize(NULL, HEADER_BYTES + bytes);
    if (packet != NULL) {
        uint8_t *at = (uint8_t *)PyBytes_AsString(packet);
        put_header(s, (uint32_t)(s->timestamp + s->step), marker || s->gap, at);
        memcpy(at + HEADER_BYTES, payload, bytes);
    }
    return packet;
}

/* Encodes a tick; returns the payload's length, 0 if Python must do it, or -1 with an exception. */
static int encode(const Sender *s, PyObject *pcm, uint8_t *payload) {
    bool opus = Py_TYPE(s->encoder) == opus_encoder_type;
    Py_buffer view;
    if (opus && s->quiet) /* the encoder's DTX ends with the silence */
        return 0;
    if (!view_pcm(pcm, &view))
        return -1;
    int bytes = -1;
    if (view.len != 2 * SAMPLES_OUT)
        PyErr_SetString(PyExc_ValueError, "a tick has 480 samples");
    else if (opus) {
        bytes = encode_opus((OpusEncoder *)s->encoder, view.buf, payload);
        bytes = bytes < 0 ? 0 : bytes;
    } else if (Py_TYPE(s->encoder) == g722_encoder_type
                   ? g722_encode((G722Encoder *)s->encoder, view.buf, SAMPLES_OUT / 3, payload)
                   : g711_encode((G711Encoder *)s->encoder, view.buf, SAMPLES_OUT / 3, payload))
        bytes = SAMPLES_OUT / 3;
    else
        PyErr_NoMemory();
    PyBuffer_Release(&view);
    return bytes;
}

/* The packet of a tick of sound, an empty one if nothing is to be sent, or NULL: without an
   exception, Python must make it. */
static PyObject *sound_packet(Sender *s, PyObject *pcm) {
    uint8_t payload[OPUS_BYTES];
    int bytes = encode(s, pcm, payload);
    if (bytes < 1)
        return NULL;
    bool sound = bytes > DTX_BYTES;
    bool due = !s->dtx || sound || s->talkspurt || s->unsent + 1 >= s->keep_alive;
    PyObject *packet = due ? new_packet(s, payload, bytes, s->dtx && sound && !s->talkspurt)
                           : PyBytes_FromStringAndSize(NULL, 0);
    if (packet != NULL) {
        s->settled = false;
        s->quiet = 0;
        if (s->dtx)
            s->talkspurt = sound;
    }
    return packet;
}

/* Likewise, of silence. */
static PyObject *silent_packet(Sender *s) {
    char *silence = NULL;
    Py_ssize_t bytes = 0;
    if (s->quiet < s->silence_packets && (s->talkspurt || !s->dtx))
        return NULL;
    bool due = !s->dtx || s->unsent + 1 >= s->keep_alive;
    if (due && (!s->settled || s->silence == NULL ||
                PyBytes_AsStringAndSize(s->silence, &silence, &bytes) < 0))
        return NULL;
    PyObject *packet =
        due ? new_packet(s, silence, bytes, false) : PyBytes_FromStringAndSize(NULL, 0);
    if (packet != NULL)
        s->talkspurt = false;
    return packet;
}

static PyObject *method_steady(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    Sender *s = (Sender *)self;
    if (given != 2) {
        PyErr_SetString(PyExc_TypeError, "_steady(pcm, now)");
        return NULL;
    }
    if (s->samples != SAMPLES_OUT || s->encoder == NULL ||
        (Py_TYPE(s->encoder) != g711_encoder_type && Py_TYPE(s->encoder) != g722_encoder_type &&
         Py_TYPE(s->encoder) != opus_encoder_type))
        Py_RETURN_NONE;
    PyObject *packet = args[0] == Py_None ? silent_packet(s) : sound_packet(s, args[0]);
    if (packet == NULL) {
        if (PyErr_Occurred())
            return NULL;
        Py_RETURN_NONE;
    }
    s->timestamp = (uint32_t)(s->timestamp + s->step);
    replace(&s->timestamp_at, Py_NewRef(args[1]));
    Py_ssize_t size = PyBytes_Size(packet);
    s->unsent++;
    if (size) {
        s->gap = false;
        s->unsent = 0;
        s->sequence_number = (uint16_t)(s->sequence_number + 1);
        s->packets++;
        s->octets += size - HEADER_BYTES;
    }
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
    {"_steady", METHOD(method_steady), METH_FASTCALL, "The next packet, if it is the usual one; empty: none is due."},
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
    {"_keep_alive", T_LONGLONG, offsetof(Sender, keep_alive)},
    {"_silence", T_OBJECT, offsetof(Sender, silence)},
    {"_gap", T_BOOL, offsetof(Sender, gap)},
    {"_settled", T_BOOL, offsetof(Sender, settled)},
    {"_talkspurt", T_BOOL, offsetof(Sender, talkspurt)},
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
