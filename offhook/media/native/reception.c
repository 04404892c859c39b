/* ReceptionStatistics of rtcp.py: what is counted for each packet. */

#include "native.h"

PyTypeObject *reception_type;

static void start(Reception *r, uint16_t sequence_number) {
    r->base = r->max_sequence = sequence_number;
    r->cycles = r->received = r->expected_prior = r->received_prior = 0;
    r->bad_sequence = -1;
    r->last_timestamp = -1;
}

static bool advance(Reception *r, uint16_t sequence_number) {
    int ahead = (uint16_t)(sequence_number - r->max_sequence);
    if (ahead < MAX_DROPOUT) {
        r->cycles += sequence_number < r->max_sequence ? 0x10000 : 0;
        r->max_sequence = sequence_number;
    } else if (ahead <= 0x10000 - MAX_MISORDER) {
        if (sequence_number != r->bad_sequence) {
            r->bad_sequence = (uint16_t)(sequence_number + 1);
            return false;
        }
        start(r, sequence_number);
    }
    return true;
}

static void update_jitter(Reception *r, uint32_t timestamp, double now) {
    int64_t before = r->last_timestamp;
    double since = r->last_at;
    if (before == timestamp)
        return;
    r->last_timestamp = timestamp;
    r->last_at = now;
    if (before < 0)
        return;
    int32_t elapsed = (int32_t)(timestamp - (uint32_t)before);
    double step = fabs((now - since) * r->clock_rate - elapsed);
    if (step < MAX_JITTER_STEP_S * r->clock_rate)
        r->jitter += (step - r->jitter) / 16;
}

void reception_receive(Reception *r, uint16_t sequence_number, int64_t timestamp, double now) {
    if (r->max_sequence < 0)
        start(r, sequence_number);
    else if (!advance(r, sequence_number))
        return;
    r->received++;
    if (timestamp >= 0)
        update_jitter(r, (uint32_t)timestamp, now);
}

static PyObject *method_receive(PyObject *self, PyObject *args) {
    long number;
    PyObject *timestamp;
    double now;
    if (!PyArg_ParseTuple(args, "lOd", &number, &timestamp, &now))
        return NULL;
    long long at = timestamp == Py_None ? -1 : PyLong_AsLongLong(timestamp);
    if (at == -1 && PyErr_Occurred())
        return NULL;
    reception_receive((Reception *)self, (uint16_t)number, at, now);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"receive", method_receive, METH_VARARGS, "Count one packet."},
    {NULL},
};

static PyMemberDef members[] = {
    {"ssrc", T_LONGLONG, offsetof(Reception, ssrc)},
    {"received", T_LONGLONG, offsetof(Reception, received)},
    {"jitter", T_DOUBLE, offsetof(Reception, jitter)},
    {"_clock_rate", T_LONGLONG, offsetof(Reception, clock_rate)},
    {"_base", T_LONGLONG, offsetof(Reception, base)},
    {"_cycles", T_LONGLONG, offsetof(Reception, cycles)},
    {"_max_sequence", T_LONGLONG, offsetof(Reception, max_sequence)},
    {"_bad_sequence", T_LONGLONG, offsetof(Reception, bad_sequence)},
    {"_last_timestamp", T_LONGLONG, offsetof(Reception, last_timestamp)},
    {"_last_at", T_DOUBLE, offsetof(Reception, last_at)},
    {"_expected_prior", T_LONGLONG, offsetof(Reception, expected_prior)},
    {"_received_prior", T_LONGLONG, offsetof(Reception, received_prior)},
    {NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Reception statistics of one SSRC."},
    {Py_tp_dealloc, free_object},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {0},
};

PyType_Spec reception_spec = {"offhook.media.native._native.Reception", sizeof(Reception), 0,
                              Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots};
