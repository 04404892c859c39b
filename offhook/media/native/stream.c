/* A carrier's stream over a WebSocket: of telephony/carriers/streams, frames.py (a client's frame
   that is whole), media_form.py, packets.py and the frame of a media message sent. */

#include "native.h"

PyTypeObject *media_reader_type, *packetizer_type;

/* --- base64 (RFC 4648 section 4) --- */

static const char ALPHABET[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
static uint8_t values[256];
#define NO_VALUE 0xFF

void base64_init(void) {
    memset(values, NO_VALUE, sizeof values);
    for (int i = 0; i < 64; i++)
        values[(uint8_t)ALPHABET[i]] = (uint8_t)i;
}

/* The bytes in `size` characters; 0 if they are not base64, padded where it must be. */
static Py_ssize_t base64_decode(const uint8_t *text, Py_ssize_t size, uint8_t *out) {
    if (size < 4 || size % 4)
        return 0;
    int padding = text[size - 1] != '=' ? 0 : text[size - 2] != '=' ? 1 : 2;
    const uint8_t *last = text + size - 4;
    uint8_t *start = out;
    for (; text < last; text += 4, out += 3) {
        uint8_t a = values[text[0]], b = values[text[1]], c = values[text[2]], d = values[text[3]];
        if ((a | b | c | d) & 0xC0)
            return 0;
        uint32_t bits = (uint32_t)a << 18 | b << 12 | c << 6 | d;
        out[0] = (uint8_t)(bits >> 16);
        out[1] = (uint8_t)(bits >> 8);
        out[2] = (uint8_t)bits;
    }
    uint8_t end[4] = {values[last[0]], values[last[1]], 0, 0};
    if (padding < 2)
        end[2] = values[last[2]];
    if (padding < 1)
        end[3] = values[last[3]];
    if ((end[0] | end[1] | end[2] | end[3]) & 0xC0)
        return 0;
    uint32_t bits = (uint32_t)end[0] << 18 | end[1] << 12 | end[2] << 6 | end[3];
    for (int i = 0; i < 3 - padding; i++)
        *out++ = (uint8_t)(bits >> (16 - 8 * i));
    return out - start;
}

static Py_ssize_t base64_size(Py_ssize_t bytes) {
    return (bytes + 2) / 3 * 4;
}

static void base64_encode(const uint8_t *data, Py_ssize_t bytes, uint8_t *out) {
    for (; bytes > 2; data += 3, bytes -= 3, out += 4) {
        uint32_t bits = (uint32_t)data[0] << 16 | data[1] << 8 | data[2];
        out[0] = ALPHABET[bits >> 18];
        out[1] = ALPHABET[bits >> 12 & 63];
        out[2] = ALPHABET[bits >> 6 & 63];
        out[3] = ALPHABET[bits & 63];
    }
    if (bytes) {
        uint32_t bits = (uint32_t)data[0] << 16 | (bytes > 1 ? data[1] << 8 : 0);
        out[0] = ALPHABET[bits >> 18];
        out[1] = ALPHABET[bits >> 12 & 63];
        out[2] = bytes > 1 ? ALPHABET[bits >> 6 & 63] : '=';
        out[3] = '=';
    }
}

/* --- Packetizer --- */

typedef struct {
    PyObject_HEAD
    /* Integers of any size, as a far end's numbers may become. */
    PyObject *number, *timestamp, *expected, *began;
    long long rate, longest, sample_bytes;
} Packetizer;

/* What a message becomes if it is the usual one. */
typedef struct {
    long long number, timestamp, samples, began;
    long long chunk, stream_ms; /* -1: none */
} Place;

#define MAX_STREAM_MS (1LL << 46) /* of later times Python takes care: here they might overflow */
#define MAX_PLACE (1LL << 61)

/* An integer of moderate size, or -1 for None. False for others. */
static bool moderate(PyObject *object, long long *value) {
    int overflow = 0;
    if (object == NULL || object == Py_None) {
        *value = -1;
        return true;
    }
    *value = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (*value == -1 && PyErr_Occurred())
        PyErr_Clear();
    else if (!overflow && -MAX_PLACE < *value && *value < MAX_PLACE)
        return true;
    return false;
}

/* Packetizer.packets of one whole packet that comes next. False if Python must see to it; nothing
   has changed. */
static bool place(const Packetizer *p, Py_ssize_t bytes, Place *out) {
    long long expected;
    if (p->sample_bytes < 1 || !moderate(p->number, &out->number) ||
        !moderate(p->timestamp, &out->timestamp) || p->number == NULL || p->timestamp == NULL)
        return false;
    out->samples = bytes / p->sample_bytes;
    if (out->samples < 1 || out->samples > p->longest)
        return false;
    if (out->chunk >= 0 && (p->expected == NULL || p->expected == Py_None ||
                            !moderate(p->expected, &expected) || expected != out->chunk))
        return false;
    if (out->stream_ms >= 0) {
        if (out->stream_ms > MAX_STREAM_MS)
            return false;
        long long time = out->stream_ms * p->rate / 1000;
        if (p->began != NULL && p->began != Py_None) {
            if (!moderate(p->began, &out->began) ||
                time - out->began - out->timestamp > p->rate * GAP_MS / 1000)
                return false;
        }
        out->began = time - out->timestamp;
    }
    return true;
}

static bool set_number(PyObject **to, long long value) {
    PyObject *number = PyLong_FromLongLong(value);
    if (number == NULL)
        return false;
    replace(to, number);
    return true;
}

/* Moves on by one packet. False with an exception set. */
static bool move_on(Packetizer *p, const Place *at) {
    return set_number(&p->number, at->number + 1) &&
           set_number(&p->timestamp, at->timestamp + at->samples) &&
           (at->chunk < 0 || set_number(&p->expected, at->chunk + 1)) &&
           (at->stream_ms < 0 || set_number(&p->began, at->began));
}

static void packetizer_dealloc(PyObject *self) {
    Packetizer *p = (Packetizer *)self;
    Py_XDECREF(p->number);
    Py_XDECREF(p->timestamp);
    Py_XDECREF(p->expected);
    Py_XDECREF(p->began);
    free_object(self);
}

static PyMemberDef packetizer_members[] = {
    {"_number", T_OBJECT, offsetof(Packetizer, number)},
    {"_timestamp", T_OBJECT, offsetof(Packetizer, timestamp)},
    {"_expected", T_OBJECT, offsetof(Packetizer, expected)},
    {"_began", T_OBJECT, offsetof(Packetizer, began)},
    {"_rate", T_LONGLONG, offsetof(Packetizer, rate)},
    {"_longest", T_LONGLONG, offsetof(Packetizer, longest)},
    {"_sample_bytes", T_LONGLONG, offsetof(Packetizer, sample_bytes)},
    {NULL},
};

static PyType_Slot packetizer_slots[] = {
    {Py_tp_doc, "What Packetizer keeps."},
    {Py_tp_dealloc, packetizer_dealloc},
    {Py_tp_members, packetizer_members},
    {0},
};

PyType_Spec packetizer_spec = {"offhook.media.native._native.Packetizer", sizeof(Packetizer), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, packetizer_slots};

/* --- messages in --- */

#define TEXT_FRAME 0x81 /* whole, without reserved bits */
#define MASKED 0x80
#define LENGTH_16 126
#define LENGTH_64 127

typedef struct {
    PyObject_HEAD
    PyObject *literals; /* a tuple of bytes */
    char fields[MAX_FIELDS];
    int count;
    Packetizer *packetizer;
    PyObject *receiver;
} MediaReader;

/* The whole frame of text at the start of the data, unmasked into `text`. Returns the length of the
   frame, 0 for anything else. */
static Py_ssize_t text_frame(const uint8_t *data, Py_ssize_t size, uint8_t *text,
                             Py_ssize_t *length) {
    if (size < 6 || data[0] != TEXT_FRAME || data[1] < MASKED)
        return 0;
    Py_ssize_t header = 6;
    *length = data[1] & 0x7F;
    if (*length == LENGTH_64)
        return 0;
    if (*length == LENGTH_16) {
        header = 8;
        *length = data[2] << 8 | data[3];
    }
    if (*length > MAX_LEARNED_CHARS || size < header + *length)
        return 0;
    const uint8_t *mask = data + header - 4;
    uint64_t eight, masks;
    memcpy(&masks, mask, 4);
    memcpy((uint8_t *)&masks + 4, mask, 4);
    Py_ssize_t i = 0;
    for (data += header; i + 8 <= *length; i += 8) {
        memcpy(&eight, data + i, 8);
        eight ^= masks;
        memcpy(text + i, &eight, 8);
    }
    for (; i < *length; i++)
        text[i] = data[i] ^ mask[i & 3];
    return header + *length;
}

typedef struct {
    long long chunk, stream_ms; /* -1: none */
    const uint8_t *payload;
    Py_ssize_t size;
} Found;

/* MediaForm.read, up to the payload, which is still in base64. */
static bool matches(const MediaReader *m, const uint8_t *text, Py_ssize_t length, Found *found) {
    const uint8_t *end = text + length;
    *found = (Found){-1, -1, NULL, 0};
    for (int i = 0;; i++) {
        PyObject *literal = PyTuple_GetItem(m->literals, i);
        Py_ssize_t size = PyBytes_Size(literal);
        const char *expected = PyBytes_AsString(literal);
        if (end - text < size || memcmp(text, expected, size) != 0)
            return false;
        text += size;
        if (i == m->count)
            return text == end && found->size > 0;
        if (m->fields[i] == 'p') {
            const uint8_t *quote = memchr(text, '"', end - text);
            if (quote == NULL)
                return false;
            found->payload = text;
            found->size = quote - text;
            text = quote;
            continue;
        }
        long long number = 0;
        const uint8_t *first = text;
        for (; text < end && '0' <= *text && *text <= '9' && text - first < MAX_DIGITS; text++)
            number = 10 * number + (*text - '0');
        bool quoted = size && expected[size - 1] == '"';
        if (text == first || (!quoted && *first == '0' && text - first > 1))
            return false;
        if (m->fields[i] == 'c')
            found->chunk = number;
        else if (m->fields[i] == 't')
            found->stream_ms = number;
    }
}

/* 1: received; 0: Python must see to it, and nothing has happened; -1 with an exception set. */
static int receive_media(MediaReader *m, const Found *found, double now) {
    uint8_t payload[MAX_LEARNED_CHARS];
    Py_ssize_t bytes = base64_decode(found->payload, found->size, payload);
    Place at = {.chunk = found->chunk, .stream_ms = found->stream_ms};
    if (!bytes || !place(m->packetizer, bytes, &at))
        return 0;
    int taken = receiver_take(m->receiver, 0, (uint16_t)at.number, (uint32_t)at.timestamp, payload,
                              bytes, now);
    return taken > 0 && !move_on(m->packetizer, &at) ? -1 : taken;
}

Py_ssize_t media_read(PyObject *self, const uint8_t *data, Py_ssize_t size, double now) {
    MediaReader *m = (MediaReader *)self;
    uint8_t text[MAX_LEARNED_CHARS];
    Py_ssize_t at = 0, length, frame;
    Found found;
    if (m->literals == NULL)
        return 0;
    while ((frame = text_frame(data + at, size - at, text, &length)) > 0) {
        if (!matches(m, text, length, &found))
            break;
        int taken = receive_media(m, &found, now);
        if (taken < 0)
            return -1;
        if (!taken)
            break;
        at += frame;
    }
    return at;
}

static PyObject *reader_read(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    char *data;
    Py_ssize_t size;
    if (given != 2) {
        PyErr_SetString(PyExc_TypeError, "read(data, now)");
        return NULL;
    }
    double now = PyFloat_AsDouble(args[1]);
    if ((now == -1 && PyErr_Occurred()) || PyBytes_AsStringAndSize(args[0], &data, &size) < 0)
        return NULL;
    Py_ssize_t read = media_read(self, (uint8_t *)data, size, now);
    return read < 0 ? NULL : PyLong_FromSsize_t(read);
}

static int reader_init(PyObject *self, PyObject *args, PyObject *keywords) {
    MediaReader *m = (MediaReader *)self;
    PyObject *literals, *packetizer, *receiver;
    const char *fields;
    Py_ssize_t count;
    static char *names[] = {"literals", "fields", "packetizer", "receiver", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!s#O!O!", names, &PyTuple_Type, &literals,
                                     &fields, &count, packetizer_type, &packetizer, receiver_type,
                                     &receiver))
        return -1;
    bool fits = count <= MAX_FIELDS && PyTuple_Size(literals) == count + 1;
    for (Py_ssize_t i = 0; fits && i <= count; i++)
        fits = PyBytes_Check(PyTuple_GetItem(literals, i));
    if (!fits || m->literals != NULL) {
        PyErr_SetString(PyExc_ValueError, "no form of a message");
        return -1;
    }
    memcpy(m->fields, fields, count);
    m->count = (int)count;
    m->literals = Py_NewRef(literals);
    m->packetizer = (Packetizer *)Py_NewRef(packetizer);
    m->receiver = Py_NewRef(receiver);
    return 0;
}

static int reader_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((MediaReader *)self)->receiver);
    Py_VISIT((PyObject *)((MediaReader *)self)->packetizer);
    return 0;
}

static int reader_clear(PyObject *self) {
    MediaReader *m = (MediaReader *)self;
    Py_CLEAR(m->literals);
    Py_CLEAR(m->receiver);
    Py_CLEAR(m->packetizer);
    return 0;
}

static void reader_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    reader_clear(self);
    free_object(self);
}

static PyMethodDef reader_methods[] = {
    {"read", METHOD(reader_read), METH_FASTCALL, "Receive the media messages at the start of the data; returns their bytes."},
    {NULL},
};

static PyType_Slot reader_slots[] = {
    {Py_tp_doc, "Reads the media messages of one form from the data of a WebSocket."},
    {Py_tp_init, reader_init},
    {Py_tp_dealloc, reader_dealloc},
    {Py_tp_traverse, reader_traverse},
    {Py_tp_clear, reader_clear},
    {Py_tp_methods, reader_methods},
    {0},
};

PyType_Spec media_reader_spec = {"offhook.media.native._native.MediaReader", sizeof(MediaReader), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, reader_slots};

/* --- messages out --- */

typedef struct {
    PyObject_HEAD
    PyObject *before, *after; /* bytes */
    G711Encoder *encoder;
} MediaWriter;

#define MAX_SAMPLES 2880 /* of a message sent: 120 ms at 24 kHz */
#define HEADER_BYTES 4   /* of a frame of less than 64 KiB */

/* A server's frame with the message of this payload. NULL with an exception set. */
static PyObject *media_frame(const MediaWriter *w, const uint8_t *payload, Py_ssize_t bytes) {
    Py_ssize_t before = PyBytes_Size(w->before), after = PyBytes_Size(w->after);
    Py_ssize_t length = before + base64_size(bytes) + after;
    Py_ssize_t header = length < LENGTH_16 ? 2 : HEADER_BYTES;
    PyObject *frame = PyBytes_FromStringAndSize(NULL, header + length);
    if (frame == NULL)
        return NULL;
    uint8_t *at = (uint8_t *)PyBytes_AsString(frame);
    at[0] = TEXT_FRAME;
    if (header == 2)
        at[1] = (uint8_t)length;
    else {
        at[1] = LENGTH_16;
        at[2] = (uint8_t)(length >> 8);
        at[3] = (uint8_t)length;
    }
    at += header;
    memcpy(at, PyBytes_AsString(w->before), before);
    base64_encode(payload, bytes, at + before);
    memcpy(at + before + base64_size(bytes), PyBytes_AsString(w->after), after);
    return frame;
}

static PyObject *writer_frame(PyObject *self, PyObject *pcm) {
    MediaWriter *w = (MediaWriter *)self;
    uint8_t payload[MAX_SAMPLES / 3];
    Py_buffer view;
    PyObject *frame = NULL;
    if (w->encoder == NULL) {
        PyErr_SetString(PyExc_ValueError, "not initialised");
        return NULL;
    }
    if (!view_pcm(pcm, &view))
        return NULL;
    Py_ssize_t samples = view.len / 2;
    if (samples % 3 || samples > MAX_SAMPLES)
        PyErr_SetString(PyExc_ValueError, "not a whole number of periods, or too long");
    else if (!g711_encode(w->encoder, view.buf, samples / 3, payload))
        PyErr_NoMemory();
    else
        frame = media_frame(w, payload, samples / 3);
    PyBuffer_Release(&view);
    return frame;
}

static int writer_init(PyObject *self, PyObject *args, PyObject *keywords) {
    MediaWriter *w = (MediaWriter *)self;
    PyObject *before, *after, *encoder;
    static char *names[] = {"before", "after", "encoder", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "SSO!", names, &before, &after,
                                     g711_encoder_type, &encoder))
        return -1;
    if (w->encoder != NULL || PyBytes_Size(before) + PyBytes_Size(after) > MAX_LEARNED_CHARS) {
        PyErr_SetString(PyExc_ValueError, "too long");
        return -1;
    }
    w->before = Py_NewRef(before);
    w->after = Py_NewRef(after);
    w->encoder = (G711Encoder *)Py_NewRef(encoder);
    return 0;
}

static void writer_dealloc(PyObject *self) {
    MediaWriter *w = (MediaWriter *)self;
    Py_XDECREF(w->before);
    Py_XDECREF(w->after);
    Py_XDECREF((PyObject *)w->encoder);
    free_object(self);
}

static PyMethodDef writer_methods[] = {
    {"frame", writer_frame, METH_O, "The frame of a media message with this sound at 24 kHz."},
    {NULL},
};

static PyType_Slot writer_slots[] = {
    {Py_tp_doc, "Encodes sound into the frames of a stream's media messages."},
    {Py_tp_init, writer_init},
    {Py_tp_dealloc, writer_dealloc},
    {Py_tp_methods, writer_methods},
    {0},
};

PyType_Spec media_writer_spec = {"offhook.media.native._native.MediaWriter", sizeof(MediaWriter), 0,
                                 Py_TPFLAGS_DEFAULT, writer_slots};
