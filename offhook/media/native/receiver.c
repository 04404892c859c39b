/* AudioReceiver of receiver.py: the next packet of the stream, and the pull that it is due in.
   Everything else is left to Python, with nothing changed. */

#include "native.h"

PyTypeObject *stats_type, *receiver_type;

typedef struct {
    PyObject_HEAD
    long long received, ignored, lost, late, malformed, fec_recovered, concealed_samples,
        accelerated_samples, expanded_samples, played_samples, played_packets;
    double delay_ms, target_ms, wait_ms;
} Stats;

#define COUNTER(name) {#name, T_LONGLONG, offsetof(Stats, name)}
static PyMemberDef stats_members[] = {
    COUNTER(received),
    COUNTER(ignored),
    COUNTER(lost),
    COUNTER(late),
    COUNTER(malformed),
    COUNTER(fec_recovered),
    COUNTER(concealed_samples),
    COUNTER(accelerated_samples),
    COUNTER(expanded_samples),
    COUNTER(played_samples),
    COUNTER(played_packets),
    {"delay_ms", T_DOUBLE, offsetof(Stats, delay_ms)},
    {"target_ms", T_DOUBLE, offsetof(Stats, target_ms)},
    {"wait_ms", T_DOUBLE, offsetof(Stats, wait_ms)},
    {NULL},
};

static PyType_Slot stats_slots[] = {
    {Py_tp_doc, "Receive counters since the start of the call."},
    {Py_tp_dealloc, free_object},
    {Py_tp_members, stats_members},
    {0},
};

PyType_Spec stats_spec = {"offhook.media.native._native.ReceiverStats", sizeof(Stats), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, stats_slots};

typedef struct {
    PyObject_HEAD
    PyObject *stats, *buffer, *ssrc, *ready, *reception, *steady;
    long long steady_type; /* payload type that `steady` decodes; -1: none */
    char playing, begun, quiet, spliced;
    long long last_number, last_non_audio, packet_samples, concealed, pulls_to_retry, dropped, tail;
    double noise_number, slack, slack_before, fit;
} Receiver;

static Stats *stats_of(Receiver *r) {
    bool is = r->stats != NULL && PyObject_TypeCheck(r->stats, stats_type);
    return is ? (Stats *)r->stats : NULL;
}

static JitterBuffer *buffer_of(Receiver *r) {
    bool is = r->buffer != NULL && Py_TYPE(r->buffer) == jitter_type;
    return is ? (JitterBuffer *)r->buffer : NULL;
}

static void count(Receiver *r, Stats *stats, Arrival arrival) {
    stats->received++;
    switch (arrival) {
    case LATE:
        stats->late++;
        if (stats->lost > 0)
            stats->lost--;
        break;
    case OUT_OF_RANGE:
        stats->late++;
        break;
    case RESTARTED:
        r->playing = r->begun = false;
        r->noise_number = -INFINITY;
        r->steady_type = -1;
        break;
    default:
        break;
    }
}

#define HEADER_BYTES 12

int receiver_take(PyObject *self, uint32_t ssrc, uint16_t number, uint32_t timestamp,
                  const uint8_t *data, Py_ssize_t bytes, double now) {
    Receiver *r = (Receiver *)self;
    if (r->steady_type < 0 || r->ssrc == NULL || r->ssrc == Py_None)
        return 0;
    Stats *stats = stats_of(r);
    JitterBuffer *buffer = buffer_of(r);
    Reception *reception = (Reception *)r->reception;
    if (stats == NULL || buffer == NULL || reception == NULL ||
        !PyObject_TypeCheck(r->reception, reception_type) || reception->ssrc != ssrc)
        return 0;
    long long ours = PyLong_AsLongLong(r->ssrc);
    if (ours == -1 && PyErr_Occurred())
        return -1;
    if (ours != ssrc)
        return 0;
    PyObject *payload = PyBytes_FromStringAndSize((const char *)data, bytes);
    if (payload == NULL)
        return -1;
    Arrival arrival = jitter_insert(buffer, (long)r->steady_type, number, timestamp, payload, now);
    Py_DECREF(payload);
    if (arrival == NO_MEMORY)
        return PyErr_NoMemory(), -1;
    count(r, stats, arrival);
    reception_receive(reception, number, timestamp, now);
    return 1;
}

int receiver_accept(PyObject *self, const uint8_t *data, Py_ssize_t size, double now) {
    /* Version 2, without padding, extension and CSRCs. */
    if (size < HEADER_BYTES || data[0] != 0x80 || (data[1] & 0x7F) != ((Receiver *)self)->steady_type)
        return 0;
    uint32_t ssrc = (uint32_t)data[8] << 24 | data[9] << 16 | data[10] << 8 | data[11];
    uint32_t timestamp = (uint32_t)data[4] << 24 | data[5] << 16 | data[6] << 8 | data[7];
    uint16_t number = (uint16_t)(data[2] << 8 | data[3]);
    return receiver_take(self, ssrc, number, timestamp, data + HEADER_BYTES, size - HEADER_BYTES,
                         now);
}

static PyObject *method_accept(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    char *data;
    Py_ssize_t size;
    if (given != 2) {
        PyErr_SetString(PyExc_TypeError, "accept(data, now)");
        return NULL;
    }
    double now = PyFloat_AsDouble(args[1]);
    if (now == -1 && PyErr_Occurred())
        return NULL;
    if (!PyBytes_Check(args[0]))
        Py_RETURN_FALSE;
    if (PyBytes_AsStringAndSize(args[0], &data, &size) < 0)
        return NULL;
    int accepted = receiver_accept(self, (const uint8_t *)data, size, now);
    return accepted < 0 ? NULL : PyBool_FromLong(accepted);
}

/* --- pull --- */

#define MAX_PACKET (2 * SAMPLES_IN) /* longer ones are Python's */

typedef struct {
    int samples, left_over; /* of the packet due, at 16 kHz; already there before it */
    long long packet_samples, pulls_to_retry;
    int64_t position;
    double slack, fit;
} Plan;

static long long floored(long long a, long long b) {
    long long rest = a % b;
    return rest < 0 ? rest + b : rest;
}

/* The samples at 16 kHz of the packet due if `steady` decodes it; 0: Python must. */
static Py_ssize_t steady_samples(const Receiver *r, const JitterBuffer *b, PyObject *payload) {
    if (r->steady == NULL || !PyBytes_Check(payload))
        return 0;
    Py_ssize_t bytes = PyBytes_Size(payload);
    if (Py_TYPE(r->steady) == opus_decoder_type)
        return b->clock_rate != OPUS_RATE ? 0
                                          : opus_packet_samples((OpusDecoder *)r->steady,
                                                         (uint8_t *)PyBytes_AsString(payload), bytes);
    const History *history = NULL;
    if (Py_TYPE(r->steady) == g711_decoder_type && b->clock_rate == G711_RATE)
        history = ((G711Decoder *)r->steady)->history;
    else if (Py_TYPE(r->steady) == g722_decoder_type && b->clock_rate == G722_CLOCK_RATE)
        history = ((G722Decoder *)r->steady)->history;
    return history == NULL || history->concealed ? 0 : 2 * bytes;
}

/* What this pull does if it is the usual one: the packet due is there, and nothing is stretched. */
static bool plan(Receiver *r, JitterBuffer *b, Py_ssize_t left_over, double now, Plan *p) {
    if (!r->playing || !r->begun || r->spliced || r->concealed || !b->count || !b->begun ||
        b->dropped != r->dropped || left_over >= SAMPLES_IN)
        return false;
    const Queued *head = b->packets;
    if (head->payload_type != r->steady_type || head->timestamp != b->position)
        return false;
    Py_ssize_t samples = steady_samples(r, b, head->payload);
    if (samples < 1 || samples > MAX_PACKET || left_over + samples < SAMPLES_IN)
        return false;
    p->samples = (int)samples;
    p->left_over = (int)left_over;
    p->packet_samples = p->samples % SAMPLES_10_MS ? r->packet_samples : p->samples;
    p->position = head->timestamp + samples * b->clock_rate / RATE_IN;
    p->slack = jitter_slack(b, head->timestamp, now);
    p->pulls_to_retry = r->pulls_to_retry;
    p->fit = r->fit;

    long long quantum = p->packet_samples < SAMPLES_IN ? p->packet_samples : SAMPLES_IN;
    if (quantum < 1)
        return false;
    long long left = floored(p->left_over + p->samples - SAMPLES_IN, quantum);
    double excess = (r->slack < p->slack ? r->slack : p->slack) - b->target;
    double change;
    if (excess < -TOLERANCE)
        change = quantum * ceil(-excess * RATE_IN / quantum) - left;
    else {
        bool follows = b->count > 1 && b->packets[1].timestamp == p->position;
        double quanta = excess >= 0 ? floor(excess * RATE_IN / quantum) : 0;
        change = left + (follows ? quantum * quanta : 0);
        if (change < MIN_PERIOD) {
            p->fit = GOOD_FIT;
            return true;
        }
    }
    if (!p->pulls_to_retry || change >= quantum)
        return false;
    p->pulls_to_retry--;
    return true;
}

/* Decodes the packet due, which stays in the buffer. False if it cannot be; without memory that is
   an exception. */
static bool decode(Receiver *r, const JitterBuffer *b, const Plan *p, int16_t *out) {
    PyObject *payload = b->packets->payload;
    const uint8_t *data = (const uint8_t *)PyBytes_AsString(payload);
    if (Py_TYPE(r->steady) == opus_decoder_type)
        return decode_opus((OpusDecoder *)r->steady, data, PyBytes_Size(payload), p->samples, out);
    if (Py_TYPE(r->steady) == g722_decoder_type) {
        G722Decoder *decoder = (G722Decoder *)r->steady;
        g722_decode(decoder, data, p->samples / 2, out);
        history_append(decoder->history, out, p->samples);
        return true;
    }
    G711Decoder *decoder = (G711Decoder *)r->steady;
    if (!g711_decode(decoder, data, p->samples / 2, out)) {
        PyErr_NoMemory();
        return false;
    }
    history_append(decoder->history, out, p->samples);
    return true;
}

/* Takes the packet decoded from the buffer. */
static void take(Receiver *r, JitterBuffer *b, Stats *stats, const Plan *p, double now,
                 const int16_t *out) {
    Queued packet = jitter_take(b);
    Py_DECREF(packet.payload);
    long long lost = packet.number - r->last_number - 1 - (packet.non_audio - r->last_non_audio);
    stats->lost += lost > 0 ? lost : 0;
    r->last_number = packet.number;
    r->last_non_audio = packet.non_audio;
    r->slack_before = r->slack;
    r->slack = p->slack;
    double ahead = (double)p->left_over / RATE_IN;
    stats->delay_ms = (p->slack + ahead) * 1000;
    stats->wait_ms = (now - packet.arrived + ahead) * 1000;
    stats->target_ms = b->target * 1000;
    stats->played_packets++;
    stats->played_samples += SAMPLES_IN;
    r->packet_samples = p->packet_samples;
    r->pulls_to_retry = p->pulls_to_retry;
    r->fit = p->fit;
    r->tail = out[p->samples - 1];
    r->quiet = false;
    b->packet_ticks = (int)(p->position - packet.timestamp);
    b->position = p->position;
}

static PyObject *method_pull(PyObject *self, PyObject *argument) {
    Receiver *r = (Receiver *)self;
    Stats *stats = stats_of(r);
    JitterBuffer *buffer = buffer_of(r);
    double now = PyFloat_AsDouble(argument);
    if (now == -1 && PyErr_Occurred())
        return NULL;
    if (stats == NULL || buffer == NULL || r->ready == NULL)
        Py_RETURN_NONE;
    Py_ssize_t left_over = PyObject_Size(r->ready);
    Plan p;
    if (left_over < 0)
        return NULL;
    if (!plan(r, buffer, left_over, now, &p))
        Py_RETURN_NONE;

    int16_t sound[SAMPLES_IN + MAX_PACKET], *data, *rest_data;
    Py_ssize_t rest = left_over + p.samples - SAMPLES_IN;
    PyObject *out = new_pcm(SAMPLES_IN, &data);
    PyObject *ready = rest || left_over ? new_pcm(rest, &rest_data) : Py_NewRef(r->ready);
    if (out == NULL || ready == NULL)
        goto failed;
    if (left_over) {
        Py_buffer view;
        if (!view_pcm(r->ready, &view))
            goto failed;
        memcpy(sound, view.buf, sizeof(int16_t) * left_over);
        PyBuffer_Release(&view);
    }
    if (!decode(r, buffer, &p, sound + left_over)) {
        if (!PyErr_Occurred()) { /* Python hears of it when it decodes the packet */
            Py_DECREF(out);
            Py_DECREF(ready);
            Py_RETURN_NONE;
        }
        goto failed;
    }
    take(r, buffer, stats, &p, now, sound + left_over);
    memcpy(data, sound, sizeof(int16_t) * SAMPLES_IN);
    if (rest)
        memcpy(rest_data, sound + SAMPLES_IN, sizeof(int16_t) * rest);
    replace(&r->ready, ready);
    return out;
failed:
    Py_XDECREF(out);
    Py_XDECREF(ready);
    return NULL;
}

static int receiver_traverse(PyObject *self, visitproc visit, void *arg) {
    Receiver *r = (Receiver *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(r->stats);
    Py_VISIT(r->buffer);
    Py_VISIT(r->ssrc);
    Py_VISIT(r->ready);
    Py_VISIT(r->reception);
    Py_VISIT(r->steady);
    return 0;
}

static int receiver_clear(PyObject *self) {
    Receiver *r = (Receiver *)self;
    Py_CLEAR(r->stats);
    Py_CLEAR(r->buffer);
    Py_CLEAR(r->ssrc);
    Py_CLEAR(r->ready);
    Py_CLEAR(r->reception);
    Py_CLEAR(r->steady);
    return 0;
}

static void receiver_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    receiver_clear(self);
    free_object(self);
}

static PyMethodDef methods[] = {
    {"accept", METHOD(method_accept), METH_FASTCALL, "Take in the next packet of the stream."},
    {"_pull_steady", method_pull, METH_O, "The next 20 ms, if nothing is out of the ordinary."},
    {NULL},
};

static PyMemberDef members[] = {
    {"stats", T_OBJECT, offsetof(Receiver, stats)},
    {"reception", T_OBJECT, offsetof(Receiver, reception)},
    {"_buffer", T_OBJECT, offsetof(Receiver, buffer)},
    {"_ssrc", T_OBJECT, offsetof(Receiver, ssrc)},
    {"_ready", T_OBJECT, offsetof(Receiver, ready)},
    {"_steady", T_OBJECT, offsetof(Receiver, steady)},
    {"_steady_type", T_LONGLONG, offsetof(Receiver, steady_type)},
    {"_playing", T_BOOL, offsetof(Receiver, playing)},
    {"_begun", T_BOOL, offsetof(Receiver, begun)},
    {"_quiet", T_BOOL, offsetof(Receiver, quiet)},
    {"_spliced", T_BOOL, offsetof(Receiver, spliced)},
    {"_last_number", T_LONGLONG, offsetof(Receiver, last_number)},
    {"_last_non_audio", T_LONGLONG, offsetof(Receiver, last_non_audio)},
    {"_packet_samples", T_LONGLONG, offsetof(Receiver, packet_samples)},
    {"_concealed", T_LONGLONG, offsetof(Receiver, concealed)},
    {"_pulls_to_retry", T_LONGLONG, offsetof(Receiver, pulls_to_retry)},
    {"_dropped", T_LONGLONG, offsetof(Receiver, dropped)},
    {"_tail", T_LONGLONG, offsetof(Receiver, tail)},
    {"_noise_number", T_DOUBLE, offsetof(Receiver, noise_number)},
    {"_slack", T_DOUBLE, offsetof(Receiver, slack)},
    {"_slack_before", T_DOUBLE, offsetof(Receiver, slack_before)},
    {"_fit", T_DOUBLE, offsetof(Receiver, fit)},
    {NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "What AudioReceiver keeps, and its usual packet and pull."},
    {Py_tp_dealloc, receiver_dealloc},
    {Py_tp_traverse, receiver_traverse},
    {Py_tp_clear, receiver_clear},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {0},
};

PyType_Spec receiver_spec = {
    "offhook.media.native._native.Receiver", sizeof(Receiver), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};
