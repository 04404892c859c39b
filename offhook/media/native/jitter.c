/* JitterBuffer and DelayEstimator of jitter.py. */

#include "native.h"

PyTypeObject *jitter_type;

static PyObject *arrivals, *queued_type;

PyObject *jitter_use_types(PyObject *module, PyObject *args) {
    PyObject *members, *type;
    if (!PyArg_ParseTuple(args, "O!O", &PyTuple_Type, &members, &type))
        return NULL;
    if (PyTuple_Size(members) != NO_MEMORY || !PyCallable_Check(type)) {
        PyErr_SetString(PyExc_ValueError, "the members of Arrival, and Queued");
        return NULL;
    }
    replace(&arrivals, Py_NewRef(members));
    replace(&queued_type, Py_NewRef(type));
    Py_RETURN_NONE;
}

static int bits_set(Bits bits) {
    return __builtin_popcountll((uint64_t)bits) + __builtin_popcountll((uint64_t)(bits >> 64));
}

static const Bits SEEN_MASK = ((Bits)1 << MAX_MISORDER) - 1;

/* --- delay --- */

static void restart_path(JitterBuffer *b) {
    b->fastest = b->previous = b->current = INFINITY;
    b->window_end = -INFINITY;
}

static double add_transit(JitterBuffer *b, double transit, double now) {
    if (now >= b->window_end) {
        b->previous = b->current;
        b->current = transit;
        b->window_end = now + WINDOW;
    } else if (transit < b->current)
        b->current = transit;
    b->fastest = b->current < b->previous ? b->current : b->previous;
    return transit - b->fastest;
}

static void rescale(JitterBuffer *b) {
    double scale = 1 / b->weight;
    b->total = b->above = 0;
    for (int i = 0; i <= BUCKETS; i++) {
        b->histogram[i] *= scale;
        b->total += b->histogram[i];
        if (i > b->bucket)
            b->above += b->histogram[i];
    }
    b->weight = 1;
}

static void record(JitterBuffer *b, double delay) {
    double at = delay / BUCKET;
    int bucket = at < BUCKETS ? (int)at : BUCKETS;
    b->histogram[bucket] += b->weight;
    b->total += b->weight;
    if (bucket > b->bucket)
        b->above += b->weight;
    double allowed = (1 - QUANTILE) * b->total;
    while (b->above > allowed && b->bucket < BUCKETS)
        b->above -= b->histogram[++b->bucket];
    while (b->bucket && b->above + b->histogram[b->bucket] <= allowed)
        b->above += b->histogram[b->bucket--];
    double target = (b->bucket + 1) * BUCKET;
    if (target < MIN_DELAY)
        target = MIN_DELAY;
    b->target = target < MAX_DELAY ? target : MAX_DELAY;
    b->weight /= FORGET_FACTOR;
    if (b->weight > 1e9)
        rescale(b);
}

/* --- packets --- */

static double seconds(const JitterBuffer *b, int64_t ticks) {
    return (double)ticks / b->clock_rate;
}

double jitter_slack(const JitterBuffer *b, int64_t timestamp, double now) {
    return now - seconds(b, timestamp) - b->fastest;
}

Queued jitter_take(JitterBuffer *b) {
    Queued first = b->packets[0];
    b->count--;
    memmove(b->packets, b->packets + 1, sizeof(Queued) * b->count);
    return first;
}

static double backlog(const JitterBuffer *b) {
    if (!b->count)
        return 0.0;
    return seconds(b, b->packets[b->count - 1].timestamp - b->packets[0].timestamp);
}

static void clear_packets(JitterBuffer *b) {
    while (b->count)
        Py_DECREF(b->packets[--b->count].payload);
}

static void reset(JitterBuffer *b, uint16_t sequence_number, uint32_t timestamp) {
    clear_packets(b);
    b->highest = (int64_t)sequence_number - 1;
    b->highest_timestamp = b->position = timestamp;
    b->sent_timestamp = timestamp;
    b->stamped = sequence_number;
    b->repeated = b->shift = 0;
    b->begun = true;
    b->seen = b->seen_non_audio = 0;
}

static void mark_seen(JitterBuffer *b, int64_t number) {
    int64_t ahead = number - b->highest;
    b->seen = ahead < MAX_MISORDER ? (b->seen << ahead | 1) & SEEN_MASK : 1;
    b->seen_non_audio = ahead < MAX_MISORDER ? b->seen_non_audio << ahead & SEEN_MASK : 0;
    b->highest = number;
}

static bool in_sequence(int64_t ahead) {
    return -MAX_MISORDER < ahead && ahead < MAX_DROPOUT;
}

static bool is_out_of_range(const JitterBuffer *b, int64_t number, int64_t timestamp, double now,
                            bool idle) {
    int64_t ahead = number - b->highest;
    if (!in_sequence(ahead))
        return true;
    if (timestamp < b->highest_timestamp && (ahead > 0 || idle))
        return true;
    if (idle)
        return ahead <= 0;
    return fabs(now - seconds(b, timestamp) - b->fastest) > MAX_TIME_OFFSET;
}

static void measure(JitterBuffer *b, int64_t number, int64_t timestamp, double now) {
    double delay = add_transit(b, now - seconds(b, timestamp), now);
    record(b, delay);
    if (b->repairable && number > b->highest + 1) {
        int64_t missing = number - b->highest;
        double packet = seconds(b, timestamp - b->highest_timestamp) / missing;
        record(b, delay + packet > 0 ? delay + packet : 0.0);
    }
}

static bool make_room(JitterBuffer *b) {
    if (b->count < b->room)
        return true;
    int room = b->room ? 2 * b->room : 8;
    Queued *packets = PyMem_Realloc(b->packets, sizeof(Queued) * room);
    if (packets == NULL)
        return false;
    b->packets = packets;
    b->room = room;
    return true;
}

static void queue(JitterBuffer *b, Queued packet) {
    packet.non_audio = b->non_audio;
    if (b->seen_non_audio)
        packet.non_audio -=
            bits_set(b->seen_non_audio & (((Bits)1 << (b->highest - packet.number)) - 1));
    Py_INCREF(packet.payload);
    int at = b->count;
    while (at && packet.number < b->packets[at - 1].number)
        at--;
    memmove(b->packets + at + 1, b->packets + at, sizeof(Queued) * (b->count - at));
    b->packets[at] = packet;
    b->count++;
    while (b->count > MAX_PACKETS || backlog(b) > MAX_SPAN) {
        Py_DECREF(jitter_take(b).payload);
        b->dropped++;
        b->position = b->packets[0].timestamp;
    }
}

static Arrival take_in(JitterBuffer *b, Queued packet) {
    b->last_arrival = packet.arrived;
    b->restart_at = -1;
    measure(b, packet.number, packet.timestamp, packet.arrived);
    int64_t behind = b->highest - packet.number;
    if (behind < 0) {
        mark_seen(b, packet.number);
        if (packet.timestamp != b->highest_timestamp) {
            b->highest_timestamp = packet.timestamp;
            b->stamped = packet.number;
        }
    } else
        b->seen |= (Bits)1 << behind;
    if (packet.timestamp < b->position)
        return LATE;
    queue(b, packet);
    return QUEUED;
}

/* By its sequence number while the sender's clock stands still. */
static int64_t timestamp_of(JitterBuffer *b, uint32_t sent, int64_t number) {
    int64_t highest = b->highest_timestamp, ahead = number - b->highest, before = b->repeated;
    int64_t timestamp =
        highest + (int32_t)(uint32_t)(sent + (uint64_t)b->shift - (uint64_t)highest);
    if (!in_sequence(ahead))
        return timestamp;
    int64_t counted = highest + (number - b->stamped) * b->packet_ticks;
    if (ahead > 0 && number != b->stamped) {
        b->repeated = sent == b->sent_timestamp ? before + 1 : 0;
        b->sent_timestamp = sent;
    }
    if (b->repeated >= STILL_PACKETS - 1)
        return sent == b->sent_timestamp ? counted : timestamp;
    if (before >= STILL_PACKETS - 1 && timestamp <= highest) {
        b->shift += counted - timestamp;
        return counted;
    }
    return timestamp;
}

Arrival jitter_insert(JitterBuffer *b, long payload_type, uint16_t sequence_number,
                      uint32_t timestamp, PyObject *payload, double now) {
    if (!make_room(b))
        return NO_MEMORY;
    if (!b->begun)
        reset(b, sequence_number, timestamp);
    bool idle = now - b->last_arrival > IDLE;
    if (idle)
        restart_path(b);
    int64_t number = b->highest + (int16_t)(uint16_t)(sequence_number - (uint64_t)b->highest);
    Queued packet = {
        .number = number,
        .timestamp = timestamp_of(b, timestamp, number),
        .arrived = now,
        .payload_type = payload_type,
        .payload = payload,
    };
    if (is_out_of_range(b, packet.number, packet.timestamp, now, idle)) {
        if (!idle && sequence_number != b->restart_at) {
            b->restart_at = (uint16_t)(sequence_number + 1);
            return OUT_OF_RANGE;
        }
        restart_path(b);
        reset(b, sequence_number, timestamp);
        packet.number = sequence_number;
        packet.timestamp = timestamp;
        take_in(b, packet);
        return RESTARTED;
    }
    int64_t behind = b->highest - packet.number;
    if (behind >= 0 && b->seen >> behind & 1)
        return DUPLICATE;
    return take_in(b, packet);
}

/* --- methods --- */

static int jitter_init(PyObject *self, PyObject *args, PyObject *keywords) {
    JitterBuffer *b = (JitterBuffer *)self;
    static char *names[] = {"clock_rate", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "i", names, &b->clock_rate))
        return -1;
    if (b->clock_rate < 1) {
        PyErr_SetString(PyExc_ValueError, "clock rate");
        return -1;
    }
    b->packet_ticks = b->clock_rate / 50;
    b->histogram[0] = b->total = PRIOR_PACKETS;
    b->target = MIN_DELAY;
    b->weight = 1;
    b->last_arrival = -INFINITY;
    b->restart_at = -1;
    restart_path(b);
    return 0;
}

static void jitter_dealloc(PyObject *self) {
    clear_packets((JitterBuffer *)self);
    PyMem_Free(((JitterBuffer *)self)->packets);
    free_object(self);
}

static bool get_long(PyObject *packet, const char *name, long *value) {
    PyObject *object = PyObject_GetAttrString(packet, name);
    if (object == NULL)
        return false;
    *value = PyLong_AsLong(object);
    Py_DECREF(object);
    return *value != -1 || !PyErr_Occurred();
}

static PyObject *method_insert(PyObject *self, PyObject *args) {
    PyObject *packet;
    double now;
    long type, number, timestamp;
    if (!PyArg_ParseTuple(args, "Od", &packet, &now) ||
        !get_long(packet, "payload_type", &type) || !get_long(packet, "sequence_number", &number) ||
        !get_long(packet, "timestamp", &timestamp))
        return NULL;
    PyObject *payload = PyObject_GetAttrString(packet, "payload");
    if (payload == NULL)
        return NULL;
    Arrival arrival = jitter_insert((JitterBuffer *)self, type, (uint16_t)number,
                                    (uint32_t)timestamp, payload, now);
    Py_DECREF(payload);
    if (arrival == NO_MEMORY)
        return PyErr_NoMemory();
    if (arrivals == NULL)
        return PyLong_FromLong(arrival);
    return Py_NewRef(PyTuple_GetItem(arrivals, arrival));
}

static PyObject *method_skip(PyObject *self, PyObject *argument) {
    JitterBuffer *b = (JitterBuffer *)self;
    long number = PyLong_AsLong(argument);
    if (number == -1 && PyErr_Occurred())
        return NULL;
    int64_t ahead = (int16_t)(uint16_t)(number - (uint64_t)b->highest);
    if (!b->begun || !in_sequence(ahead))
        Py_RETURN_NONE;
    int64_t unwrapped = b->highest + ahead;
    if (ahead > 0)
        mark_seen(b, unwrapped);
    else if (b->seen >> -ahead & 1)
        Py_RETURN_NONE;
    else {
        b->seen |= (Bits)1 << -ahead;
        for (int i = 0; i < b->count; i++)
            b->packets[i].non_audio += b->packets[i].number > unwrapped;
    }
    b->seen_non_audio |= (Bits)1 << (b->highest - unwrapped);
    b->non_audio++;
    return PyLong_FromLongLong(unwrapped);
}

static PyObject *method_is_behind(PyObject *self, PyObject *argument) {
    long number = PyLong_AsLong(argument);
    if (number == -1 && PyErr_Occurred())
        return NULL;
    int ahead = (int16_t)(uint16_t)(number - (uint64_t)((JitterBuffer *)self)->highest);
    return PyBool_FromLong(-MAX_MISORDER < ahead && ahead < 0);
}

static PyObject *as_object(const Queued *packet) {
    if (queued_type == NULL)
        Py_RETURN_NONE;
    return PyObject_CallFunction(queued_type, "LLdlOL", (long long)packet->number,
                                 (long long)packet->timestamp, packet->arrived,
                                 packet->payload_type, packet->payload,
                                 (long long)packet->non_audio);
}

static PyObject *method_pop(PyObject *self, PyObject *none) {
    JitterBuffer *b = (JitterBuffer *)self;
    if (!b->count) {
        PyErr_SetString(PyExc_IndexError, "pop from an empty buffer");
        return NULL;
    }
    Queued packet = jitter_take(b);
    PyObject *object = as_object(&packet);
    Py_DECREF(packet.payload);
    return object;
}

static PyObject *method_backlog(PyObject *self, PyObject *none) {
    return PyFloat_FromDouble(backlog((JitterBuffer *)self));
}

static PyObject *method_slack(PyObject *self, PyObject *args) {
    long long timestamp;
    double now;
    if (!PyArg_ParseTuple(args, "Ld", &timestamp, &now))
        return NULL;
    return PyFloat_FromDouble(jitter_slack((JitterBuffer *)self, timestamp, now));
}

static PyObject *get_head(PyObject *self, void *none) {
    JitterBuffer *b = (JitterBuffer *)self;
    if (!b->count)
        Py_RETURN_NONE;
    return as_object(b->packets);
}

static PyObject *get_position(PyObject *self, void *none) {
    JitterBuffer *b = (JitterBuffer *)self;
    if (!b->begun)
        Py_RETURN_NONE;
    return PyLong_FromLongLong(b->position);
}

static int set_position(PyObject *self, PyObject *value, void *none) {
    JitterBuffer *b = (JitterBuffer *)self;
    long long position = value == NULL ? -1 : PyLong_AsLongLong(value);
    if (value == NULL || (position == -1 && PyErr_Occurred()))
        return -1;
    b->position = position;
    b->begun = true;
    return 0;
}

static Py_ssize_t length(PyObject *self) {
    return ((JitterBuffer *)self)->count;
}

static PyMethodDef methods[] = {
    {"insert", method_insert, METH_VARARGS, "Insert a packet that arrived at `now`."},
    {"skip_non_audio", method_skip, METH_O, "Account for a packet that holds no audio."},
    {"is_behind", method_is_behind, METH_O, "Whether it was sent shortly before the latest."},
    {"pop", method_pop, METH_NOARGS, "Take the next packet to play."},
    {"backlog", method_backlog, METH_NOARGS, "Seconds from the first to the last packet held."},
    {"slack", method_slack, METH_VARARGS, "Seconds since the packet could have arrived."},
    {NULL},
};

static PyGetSetDef properties[] = {
    {"head", get_head},
    {"position", get_position, set_position},
    {NULL},
};

static PyMemberDef members[] = {
    {"clock_rate", T_INT, offsetof(JitterBuffer, clock_rate), READONLY},
    {"packet_ticks", T_INT, offsetof(JitterBuffer, packet_ticks)},
    {"repairable", T_BOOL, offsetof(JitterBuffer, repairable)},
    {"dropped", T_LONGLONG, offsetof(JitterBuffer, dropped), READONLY},
    {"target", T_DOUBLE, offsetof(JitterBuffer, target), READONLY},
    {NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "The jitter buffer of one stream."},
    {Py_tp_init, jitter_init},
    {Py_tp_dealloc, jitter_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {Py_tp_members, members},
    {Py_sq_length, length},
    {0},
};

PyType_Spec jitter_spec = {"offhook.media.native._native.JitterBuffer", sizeof(JitterBuffer), 0,
                           Py_TPFLAGS_DEFAULT, slots};
