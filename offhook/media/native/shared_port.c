/* The reader of the UDP port that WebRTC calls share: port_io.py's, of demultiplexer.py the way of
   what is no STUN from an address that an agent has learned, and of peer_io.py RTP and RTCP. */

#include "native.h"

PyTypeObject *inbound_type;

/* --- a leg's RTP and RTCP --- */

typedef struct {
    PyObject_HEAD
    PyObject *leg;
    Srtp *srtp;
} Inbound;

static bool is_media(const uint8_t *data, Py_ssize_t size) {
    return size > 1 && 127 < data[0] && data[0] < 192;
}

static int count_failure(PyObject *leg) {
    PyObject *before = PyObject_GetAttrString(leg, "srtp_failures");
    PyObject *one = PyLong_FromLong(1), *after = NULL;
    if (before != NULL && one != NULL)
        after = PyNumber_Add(before, one);
    int set = after == NULL ? -1 : PyObject_SetAttrString(leg, "srtp_failures", after);
    Py_XDECREF(before);
    Py_XDECREF(one);
    Py_XDECREF(after);
    return set;
}

/* Has Python receive what is unprotected. */
static int call(PyObject *leg, const char *method, const uint8_t *data, Py_ssize_t size,
                PyObject *now) {
    PyObject *packet = PyBytes_FromStringAndSize((const char *)data, size);
    PyObject *done = packet == NULL ? NULL : PyObject_CallMethod(leg, method, "OO", packet, now);
    Py_XDECREF(packet);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

int leg_receive_rtp(PyObject *leg, PyObject *receiver, const uint8_t *data, Py_ssize_t size,
                    PyObject *now) {
    int accepted = 0;
    if (PyObject_TypeCheck(receiver, receiver_type) && attribute_is(leg, "receiving", Py_True))
        accepted = receiver_accept(receiver, data, size, PyFloat_AsDouble(now));
    if (accepted == 1)
        return PyObject_SetAttrString(leg, "last_packet_at", now);
    return PyErr_Occurred() ? -1 : call(leg, "receive_rtp", data, size, now);
}

static int receive_rtp(PyObject *leg, const uint8_t *data, int size, PyObject *now) {
    PyObject *receiver = PyObject_GetAttrString(leg, "_receiver");
    int failed = receiver == NULL ? -1 : leg_receive_rtp(leg, receiver, data, size, now);
    Py_XDECREF(receiver);
    return failed;
}

/* 1: done; 0: Python must look at it; -1 with an exception set. */
static int inbound_receive(Inbound *inbound, uint8_t *data, Py_ssize_t size, PyObject *now) {
    Srtp *srtp = inbound->srtp;
    if (srtp == NULL || srtp->session == NULL || size > SRTP_BYTES)
        return 0;
    bool rtcp = is_rtcp(data);
    int length = (int)size, failed;
    if ((rtcp ? srtp->unprotect_rtcp : srtp->unprotect_rtp)(srtp->srtp, data, &length))
        failed = count_failure(inbound->leg);
    else
        failed = rtcp ? call(inbound->leg, "receive_rtcp", data, length, now)
                      : receive_rtp(inbound->leg, data, length, now);
    return failed ? -1 : 1;
}

static int inbound_init(PyObject *self, PyObject *args, PyObject *keywords) {
    Inbound *inbound = (Inbound *)self;
    PyObject *leg, *srtp;
    static char *names[] = {"leg", "srtp", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO!", names, &leg, srtp_type, &srtp))
        return -1;
    replace(&inbound->leg, Py_NewRef(leg));
    replace((PyObject **)&inbound->srtp, Py_NewRef(srtp));
    return 0;
}

static int inbound_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((Inbound *)self)->leg);
    Py_VISIT((PyObject *)((Inbound *)self)->srtp);
    return 0;
}

static int inbound_clear(PyObject *self) {
    Py_CLEAR(((Inbound *)self)->leg);
    Py_CLEAR(((Inbound *)self)->srtp);
    return 0;
}

static void inbound_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    inbound_clear(self);
    free_object(self);
}

static PyType_Slot inbound_slots[] = {
    {Py_tp_doc, "What a WebRTC leg receives, protected by SRTP."},
    {Py_tp_init, inbound_init},
    {Py_tp_dealloc, inbound_dealloc},
    {Py_tp_traverse, inbound_traverse},
    {Py_tp_clear, inbound_clear},
    {0},
};

PyType_Spec inbound_spec = {"offhook.media.native._native.Inbound", sizeof(Inbound), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, inbound_slots};

/* --- the port --- */

typedef struct {
    PyObject_HEAD
    int fd;
    PyObject *paths, *receive;
    Datagrams datagrams;
} SharedPort;

/* What the agent that has learned an address does with RTP in C; NULL if there is none. */
static PyObject *inbound_of(PyObject *paths, PyObject *remote) {
    static const char *const way[] = {"receiver", "agent", "inbound"};
    PyObject *inbound = PyDict_GetItemWithError(paths, remote);
    Py_XINCREF(inbound);
    for (size_t i = 0; inbound != NULL && i < sizeof way / sizeof way[0]; i++)
        replace(&inbound, PyObject_GetAttrString(inbound, way[i]));
    if (inbound != NULL && Py_TYPE(inbound) == inbound_type)
        return inbound;
    Py_XDECREF(inbound);
    return NULL;
}

static int deliver(PyObject *to, Datagram *datagram) {
    SharedPort *port = (SharedPort *)to;
    PyObject *remote = address_of(datagram->source, datagram->source_length);
    if (remote == NULL)
        return -1;
    int taken = 0;
    if (is_media(datagram->data, datagram->size)) {
        PyObject *inbound = inbound_of(port->paths, remote);
        if (inbound != NULL)
            taken = inbound_receive((Inbound *)inbound, datagram->data, datagram->size,
                                    datagram->arrived);
        else if (PyErr_Occurred())
            taken = -1;
        Py_XDECREF(inbound);
    }
    if (taken == 0) {
        PyObject *packet = PyBytes_FromStringAndSize((char *)datagram->data, datagram->size);
        PyObject *done = packet == NULL
                             ? NULL
                             : PyObject_CallFunctionObjArgs(port->receive, packet, remote,
                                                            datagram->arrived, NULL);
        Py_XDECREF(packet);
        Py_XDECREF(done);
        taken = done == NULL ? -1 : 1;
    }
    Py_DECREF(remote);
    return taken;
}

static PyObject *method_read(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    SharedPort *port = (SharedPort *)self;
    Failure failure = {NULL};
    Reading reading;
    if (!begin_reading(args, given, &failure, &reading))
        return NULL;
    if (port->paths == NULL) {
        PyErr_SetString(PyExc_ValueError, "not initialised");
        return NULL;
    }
    return end_reading(&reading, drain(&port->datagrams, port->fd, &reading, deliver, self));
}

static int port_init(PyObject *self, PyObject *args, PyObject *keywords) {
    SharedPort *port = (SharedPort *)self;
    PyObject *paths, *receive;
    int fd;
    static char *names[] = {"fd", "paths", "receive", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "iO!O", names, &fd, &PyDict_Type, &paths,
                                     &receive))
        return -1;
    if (!datagrams_init(&port->datagrams))
        return -1;
    request_times(fd);
    port->fd = fd;
    replace(&port->paths, Py_NewRef(paths));
    replace(&port->receive, Py_NewRef(receive));
    return 0;
}

static int port_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((SharedPort *)self)->paths);
    Py_VISIT(((SharedPort *)self)->receive);
    return 0;
}

static int port_clear(PyObject *self) {
    Py_CLEAR(((SharedPort *)self)->paths);
    Py_CLEAR(((SharedPort *)self)->receive);
    return 0;
}

static void port_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    port_clear(self);
    datagrams_free(&((SharedPort *)self)->datagrams);
    free_object(self);
}

static PyMethodDef methods[] = {
    {"read", METHOD(method_read), METH_FASTCALL,
     "Read what has arrived, at most DRAIN_DATAGRAMS; returns how many."},
    {NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Reads a port of many calls; what is not RTP of one of them goes to `receive`."},
    {Py_tp_init, port_init},
    {Py_tp_dealloc, port_dealloc},
    {Py_tp_traverse, port_traverse},
    {Py_tp_clear, port_clear},
    {Py_tp_methods, methods},
    {0},
};

PyType_Spec shared_port_spec = {"offhook.media.native._native.SharedPort", sizeof(SharedPort), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};
