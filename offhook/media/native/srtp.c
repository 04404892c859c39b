/* SRTP of srtp.py: the same functions of the same libsrtp as pylibsrtp's, on the same session. */

#include "native.h"

PyTypeObject *srtp_type;

#define TRAILER_BYTES 144 /* the most that libsrtp adds */

static int srtp_init(PyObject *self, PyObject *args, PyObject *keywords) {
    Srtp *srtp = (Srtp *)self;
    PyObject *session, *state, *protect, *unprotect, *unprotect_rtcp;
    static char *names[] = {"session", "state", "protect", "unprotect", "unprotect_rtcp", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOOOO", names, &session, &state, &protect,
                                     &unprotect, &unprotect_rtcp))
        return -1;
    void *pointers[] = {pointer_of(state), pointer_of(protect), pointer_of(unprotect),
                        pointer_of(unprotect_rtcp)};
    if (PyErr_Occurred())
        return -1;
    srtp->srtp = pointers[0];
    *(void **)&srtp->protect_rtp = pointers[1];
    *(void **)&srtp->unprotect_rtp = pointers[2];
    *(void **)&srtp->unprotect_rtcp = pointers[3];
    replace(&srtp->session, Py_NewRef(session));
    return 0;
}

static void srtp_dealloc(PyObject *self) {
    Py_XDECREF(((Srtp *)self)->session);
    free_object(self);
}

static PyObject *method_protect(PyObject *self, PyObject *packet) {
    Srtp *srtp = (Srtp *)self;
    char *data;
    Py_ssize_t size;
    uint32_t room[SRTP_BYTES / sizeof(uint32_t)]; /* as aligned as libsrtp likes it */
    if (PyBytes_AsStringAndSize(packet, &data, &size) < 0)
        return NULL;
    if (srtp->session == NULL || size > SRTP_BYTES - TRAILER_BYTES)
        Py_RETURN_NONE;
    memcpy(room, data, size);
    int length = (int)size;
    if (srtp->protect_rtp(srtp->srtp, room, &length) != 0)
        Py_RETURN_NONE;
    return PyBytes_FromStringAndSize((char *)room, length);
}

static PyMethodDef methods[] = {
    {"protect", method_protect, METH_O, "Encrypt an RTP packet; None: pylibsrtp says why not."},
    {NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "One direction of SRTP."},
    {Py_tp_init, srtp_init},
    {Py_tp_dealloc, srtp_dealloc},
    {Py_tp_methods, methods},
    {0},
};

PyType_Spec srtp_spec = {"offhook.media.native._native.Srtp", sizeof(Srtp), 0, Py_TPFLAGS_DEFAULT,
                         slots};
