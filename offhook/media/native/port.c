/* The reader of a SIP call's RTP port: rtp_ports_io.py's, and of rtp_transport_io.py and latch.py
   what concerns the next packet from the source latched, in plain RTP. */

#include "native.h"

#include <time.h>

typedef struct {
    PyObject_HEAD
    int fd;
    PyObject *receive, *leg, *latch;
    PyObject *receiver; /* of the leg, once it is opened; else NULL */
    PyObject *locked;   /* latch._locked when `source` was that; else NULL */
    struct sockaddr_in6 source; /* or an IPv4 address */
} Port;

static bool same_source(const struct sockaddr_in6 *a, const struct sockaddr_in6 *b) {
    if (a->sin6_family != b->sin6_family)
        return false;
    if (a->sin6_family == AF_INET) {
        const struct sockaddr_in *x = (const void *)a, *y = (const void *)b;
        return x->sin_port == y->sin_port && x->sin_addr.s_addr == y->sin_addr.s_addr;
    }
    return a->sin6_port == b->sin6_port && a->sin6_scope_id == b->sin6_scope_id &&
           memcmp(&a->sin6_addr, &b->sin6_addr, sizeof a->sin6_addr) == 0;
}

static double monotonic(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec * 1000000000LL + now.tv_nsec) / 1e9;
}

/* What latch and leg keep of a packet accepted. */
static int note(Port *port, PyObject *data, double now) {
    PyObject *at = PyFloat_FromDouble(now), *candidates = NULL;
    int failed = -1;
    if (at != NULL && PyObject_SetAttrString(port->latch, "_last", data) == 0 &&
        PyObject_SetAttrString(port->latch, "_received_at", at) == 0 &&
        PyObject_SetAttrString(port->leg, "last_packet_at", at) == 0 &&
        (candidates = PyObject_GetAttrString(port->latch, "_candidates")) != NULL) {
        failed = 0;
        if (PyObject_IsTrue(candidates) > 0)
            PyDict_Clear(candidates);
    }
    Py_XDECREF(at);
    Py_XDECREF(candidates);
    return failed;
}

/* 1: done; 0: Python must look at it; -1 with an exception set. */
static int take(Port *port, const struct sockaddr_in6 *source, PyObject *data) {
    if (port->locked == NULL || !same_source(source, &port->source) ||
        !attribute_is(port->latch, "_locked", port->locked) ||
        !attribute_is(port->latch, "_secure", Py_False) ||
        !attribute_is(port->leg, "receiving", Py_True))
        return PyErr_Occurred() ? -1 : 0;
    double now = monotonic();
    int accepted = receiver_accept(port->receiver, (const uint8_t *)PyBytes_AsString(data),
                                   PyBytes_Size(data), now);
    if (accepted == 1 && note(port, data, now) < 0)
        return -1;
    return accepted;
}

/* Whether further packets from this source may be taken without Python. */
static int trust(Port *port, const struct sockaddr_in6 *source, PyObject *as_python) {
    PyObject *locked = PyObject_GetAttrString(port->latch, "_locked");
    if (locked == NULL)
        return -1;
    int same = PyObject_RichCompareBool(locked, as_python, Py_EQ);
    if (same == 1) {
        PyObject *receiver = PyObject_GetAttrString(port->leg, "_receiver");
        if (receiver == NULL || !PyObject_TypeCheck(receiver, receiver_type)) {
            PyErr_Clear(); /* the leg is not opened yet */
            Py_XDECREF(receiver);
            receiver = NULL;
        } else {
            port->source = *source;
            replace(&port->receiver, receiver);
            replace(&port->locked, Py_NewRef(locked));
        }
    }
    Py_DECREF(locked);
    return same;
}

static PyObject *method_read(PyObject *self, PyObject *none) {
    Port *port = (Port *)self;
    uint8_t buffer[DATAGRAM_BYTES];
    struct sockaddr_in6 source = {0};
    socklen_t length = sizeof source;
    ssize_t size = recvfrom(port->fd, buffer, sizeof buffer, MSG_DONTWAIT,
                            (struct sockaddr *)&source, &length);
    if (size < 0) /* a spurious wake-up, or an ICMP error for an earlier packet */
        Py_RETURN_NONE;
    PyObject *data = PyBytes_FromStringAndSize((char *)buffer, size);
    if (data == NULL)
        return NULL;
    PyObject *result = NULL;
    int taken = take(port, &source, data);
    if (taken == 1)
        result = Py_NewRef(Py_None);
    else if (taken == 0) {
        PyObject *from = address_of(&source, length);
        result = from == NULL ? NULL
                              : PyObject_CallFunctionObjArgs(port->receive, data, from, NULL);
        if (result != NULL && trust(port, &source, from) < 0)
            Py_CLEAR(result);
        Py_XDECREF(from);
    }
    Py_DECREF(data);
    return result;
}

static int port_init(PyObject *self, PyObject *args, PyObject *keywords) {
    Port *port = (Port *)self;
    PyObject *receive, *leg, *latch;
    int fd;
    static char *names[] = {"fd", "receive", "leg", "latch", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "iOOO", names, &fd, &receive, &leg, &latch))
        return -1;
    port->fd = fd;
    replace(&port->receive, Py_NewRef(receive));
    replace(&port->leg, Py_NewRef(leg));
    replace(&port->latch, Py_NewRef(latch));
    return 0;
}

static int port_traverse(PyObject *self, visitproc visit, void *arg) {
    Port *port = (Port *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(port->receive);
    Py_VISIT(port->leg);
    Py_VISIT(port->latch);
    Py_VISIT(port->receiver);
    Py_VISIT(port->locked);
    return 0;
}

static int port_clear(PyObject *self) {
    Port *port = (Port *)self;
    Py_CLEAR(port->receive);
    Py_CLEAR(port->leg);
    Py_CLEAR(port->latch);
    Py_CLEAR(port->receiver);
    Py_CLEAR(port->locked);
    return 0;
}

static void port_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    port_clear(self);
    free_object(self);
}

static PyMethodDef methods[] = {
    {"read", method_read, METH_NOARGS, "Read one datagram."},
    {NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Reads a call's RTP port; what is not the next packet goes to `receive`."},
    {Py_tp_init, port_init},
    {Py_tp_dealloc, port_dealloc},
    {Py_tp_traverse, port_traverse},
    {Py_tp_clear, port_clear},
    {Py_tp_methods, methods},
    {0},
};

PyType_Spec port_spec = {"offhook.media.native._native.Port", sizeof(Port), 0,
                         Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};
