/* The readers of SIP calls' RTP ports: rtp_ports_io.py's, and of rtp_transport_io.py and latch.py
   what concerns RTP from the source latched, plain or under the keys in use. */

#include "native.h"

#include <sys/epoll.h>

PyTypeObject *port_type;

/* --- one port --- */

#define RTP_HEADER_BYTES 12
#define SSRC 8 /* where it is in a packet, of 4 bytes */

typedef struct {
    PyObject_HEAD
    PyObject *receive, *leg, *transport, *latch;
    PyObject *receiver; /* of the leg, once it is opened; else NULL */
    PyObject *locked;   /* latch._locked when `source` was that; else NULL */
    struct sockaddr_in6 source; /* or an IPv4 address */
    PyObject *keys; /* transport._srtp when it had authenticated `ssrc`; else NULL */
    Srtp *srtp;     /* what receives under these keys; else NULL */
    uint8_t ssrc[4];
} Port;

/* What the latch keeps of a packet accepted. */
static int note(Port *port, PyObject *data, PyObject *at) {
    if (PyObject_SetAttrString(port->latch, "_last", data) < 0 ||
        PyObject_SetAttrString(port->latch, "_received_at", at) < 0)
        return -1;
    PyObject *candidates = PyObject_GetAttrString(port->latch, "_candidates");
    if (candidates == NULL)
        return -1;
    if (PyObject_IsTrue(candidates) > 0)
        PyDict_Clear(candidates);
    Py_DECREF(candidates);
    return 0;
}

/* Undoes SRTP where the packet lies. False if Python must, also to say what is wrong with it:
   libsrtp keeps nothing of a packet that is not authentic. */
static bool unprotect(Port *port, Datagram *datagram) {
    if (port->srtp == NULL || !attribute_is(port->transport, "_srtp", port->keys) ||
        datagram->size < RTP_HEADER_BYTES || datagram->size > SRTP_BYTES ||
        memcmp(datagram->data + SSRC, port->ssrc, sizeof port->ssrc) != 0)
        return false;
    int length = (int)datagram->size;
    if (port->srtp->unprotect_rtp(port->srtp->srtp, datagram->data, &length) != 0)
        return false;
    datagram->size = length;
    return true;
}

/* 1: done; 0: Python must look at it; -1 with an exception set. */
static int take(Port *port, Datagram *datagram, PyObject *data) {
    if (port->locked == NULL || !same_source(datagram->source, &port->source) ||
        !attribute_is(port->latch, "_locked", port->locked) || datagram->size < 2 ||
        datagram->data[0] >> 6 != 2 || is_rtcp(datagram->data))
        return PyErr_Occurred() ? -1 : 0;
    if (!attribute_is(port->latch, "_secure", Py_False) && !unprotect(port, datagram))
        return PyErr_Occurred() ? -1 : 0;
    if (note(port, data, datagram->arrived) < 0 ||
        leg_receive_rtp(port->leg, port->receiver, datagram->data, datagram->size,
                        datagram->arrived) < 0)
        return -1;
    return 1;
}

/* Notes whether further packets like this one, which Python has received, may be unprotected
   without it: the SSRC has been authenticated under the keys in use. */
static int trust_keys(Port *port, const char *packet, Py_ssize_t size) {
    replace(&port->keys, NULL);
    replace((PyObject **)&port->srtp, NULL);
    PyObject *keys = PyObject_GetAttrString(port->transport, "_srtp");
    if (keys == NULL || keys == Py_None || size < RTP_HEADER_BYTES) {
        Py_XDECREF(keys);
        return keys == NULL ? -1 : 0;
    }
    PyObject *ssrc = PyBytes_FromStringAndSize(packet + SSRC, sizeof port->ssrc);
    PyObject *srtp = PyObject_GetAttrString(keys, "compiled");
    PyObject *sources = PyObject_GetAttrString(keys, "_sources");
    int known = ssrc == NULL || srtp == NULL || sources == NULL ? -1
                                                                : PySet_Contains(sources, ssrc);
    if (known == 1 && Py_TYPE(srtp) == srtp_type && ((Srtp *)srtp)->session != NULL) {
        memcpy(port->ssrc, packet + SSRC, sizeof port->ssrc);
        replace(&port->keys, Py_NewRef(keys));
        replace((PyObject **)&port->srtp, Py_NewRef(srtp));
    }
    Py_DECREF(keys);
    Py_XDECREF(ssrc);
    Py_XDECREF(srtp);
    Py_XDECREF(sources);
    return known < 0 ? -1 : 0;
}

/* Notes whether further packets from this source may be taken without Python. */
static int trust(Port *port, const struct sockaddr_in6 *source, PyObject *as_python,
                 PyObject *data) {
    PyObject *locked = PyObject_GetAttrString(port->latch, "_locked");
    if (locked == NULL)
        return -1;
    int same = PyObject_RichCompareBool(locked, as_python, Py_EQ);
    if (same == 1) {
        PyObject *receiver = PyObject_GetAttrString(port->leg, "_receiver");
        if (receiver == NULL || !PyObject_TypeCheck(receiver, receiver_type)) {
            PyErr_Clear(); /* the leg is not opened yet */
            Py_XDECREF(receiver);
        } else {
            port->source = *source;
            replace(&port->receiver, receiver);
            replace(&port->locked, Py_NewRef(locked));
            same = trust_keys(port, PyBytes_AsString(data), PyBytes_Size(data));
        }
    }
    Py_DECREF(locked);
    return same;
}

static int deliver(PyObject *to, Datagram *datagram) {
    Port *port = (Port *)to;
    PyObject *data = PyBytes_FromStringAndSize((char *)datagram->data, datagram->size);
    if (data == NULL)
        return -1;
    int taken = take(port, datagram, data);
    if (taken == 0) {
        PyObject *from = address_of(datagram->source, datagram->source_length), *done = NULL;
        if (from != NULL)
            done = PyObject_CallFunctionObjArgs(port->receive, data, from, datagram->arrived, NULL);
        taken = done == NULL ? -1 : trust(port, datagram->source, from, data);
        Py_XDECREF(done);
        Py_XDECREF(from);
    }
    Py_DECREF(data);
    return taken;
}

static int port_init(PyObject *self, PyObject *args, PyObject *keywords) {
    Port *port = (Port *)self;
    PyObject *receive, *leg, *transport, *latch;
    int fd;
    static char *names[] = {"fd", "receive", "leg", "transport", "latch", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "iOOOO", names, &fd, &receive, &leg,
                                     &transport, &latch))
        return -1;
    request_times(fd);
    replace(&port->receive, Py_NewRef(receive));
    replace(&port->leg, Py_NewRef(leg));
    replace(&port->transport, Py_NewRef(transport));
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
    Py_VISIT(port->transport);
    Py_VISIT(port->keys);
    Py_VISIT((PyObject *)port->srtp);
    return 0;
}

static int port_clear(PyObject *self) {
    Port *port = (Port *)self;
    Py_CLEAR(port->receive);
    Py_CLEAR(port->leg);
    Py_CLEAR(port->latch);
    Py_CLEAR(port->receiver);
    Py_CLEAR(port->locked);
    Py_CLEAR(port->transport);
    Py_CLEAR(port->keys);
    Py_CLEAR(port->srtp);
    return 0;
}

static void port_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    port_clear(self);
    free_object(self);
}

static PyType_Slot port_slots[] = {
    {Py_tp_doc, "A call's RTP port; what is not the next packet goes to `receive`."},
    {Py_tp_init, port_init},
    {Py_tp_dealloc, port_dealloc},
    {Py_tp_traverse, port_traverse},
    {Py_tp_clear, port_clear},
    {0},
};

PyType_Spec port_spec = {"offhook.media.native._native.Port", sizeof(Port), 0,
                         Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, port_slots};

/* --- those of all calls --- */

typedef struct {
    PyObject_HEAD
    int epoll;
    PyObject *ports; /* Port by its file descriptor */
    Datagrams datagrams;
} Ports;

/* Reads a port, unless an earlier packet has ended its call. False with an exception set. */
static bool read_port(Ports *ports, int fd, const Reading *reading) {
    PyObject *number = PyLong_FromLong(fd);
    PyObject *port = number == NULL ? NULL : PyDict_GetItemWithError(ports->ports, number);
    Py_XDECREF(number);
    if (port == NULL)
        return !PyErr_Occurred();
    if (Py_TYPE(port) != port_type) {
        PyErr_SetString(PyExc_TypeError, "not a Port");
        return false;
    }
    Py_INCREF(port);
    drain(&ports->datagrams, fd, reading, deliver, port);
    Py_DECREF(port);
    return true;
}

static PyObject *method_read(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    Ports *ports = (Ports *)self;
    Failure failure = {NULL};
    Reading reading;
    struct epoll_event ready[READY_PORTS];
    if (!begin_reading(args, given, &failure, &reading))
        return NULL;
    if (ports->ports == NULL) {
        PyErr_SetString(PyExc_ValueError, "not initialised");
        return NULL;
    }
    int count = epoll_wait(ports->epoll, ready, READY_PORTS, 0);
    for (int i = 0; i < count; i++)
        if (!read_port(ports, ready[i].data.fd, &reading))
            return NULL;
    return end_reading(&reading, count > 0 ? count : 0);
}

static int ports_init(PyObject *self, PyObject *args, PyObject *keywords) {
    Ports *ports = (Ports *)self;
    PyObject *by_fd;
    int epoll;
    static char *names[] = {"epoll", "ports", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "iO!", names, &epoll, &PyDict_Type, &by_fd) ||
        !datagrams_init(&ports->datagrams))
        return -1;
    ports->epoll = epoll;
    replace(&ports->ports, Py_NewRef(by_fd));
    return 0;
}

static int ports_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((Ports *)self)->ports);
    return 0;
}

static int ports_clear(PyObject *self) {
    Py_CLEAR(((Ports *)self)->ports);
    return 0;
}

static void ports_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    ports_clear(self);
    datagrams_free(&((Ports *)self)->datagrams);
    free_object(self);
}

static PyMethodDef methods[] = {
    {"read", METHOD(method_read), METH_FASTCALL,
     "Read ports at which something has arrived, at most READY_PORTS; returns how many."},
    {NULL},
};

static PyType_Slot ports_slots[] = {
    {Py_tp_doc, "Reads those of many ports at which something has arrived."},
    {Py_tp_init, ports_init},
    {Py_tp_dealloc, ports_dealloc},
    {Py_tp_traverse, ports_traverse},
    {Py_tp_clear, ports_clear},
    {Py_tp_methods, methods},
    {0},
};

PyType_Spec ports_spec = {"offhook.media.native._native.Ports", sizeof(Ports), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, ports_slots};
