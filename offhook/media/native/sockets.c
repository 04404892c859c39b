/* Reading sockets: many datagrams at once, with the time at which the kernel received each. */

#include "native.h"

#include <errno.h>
#include <netdb.h>

#define MAX_WAIT_S 60.0 /* longer, and the clock was set */

bool same_source(const struct sockaddr_in6 *a, const struct sockaddr_in6 *b) {
    if (a->sin6_family != b->sin6_family)
        return false;
    if (a->sin6_family == AF_INET) {
        const struct sockaddr_in *x = (const void *)a, *y = (const void *)b;
        return x->sin_port == y->sin_port && x->sin_addr.s_addr == y->sin_addr.s_addr;
    }
    return a->sin6_port == b->sin6_port && a->sin6_scope_id == b->sin6_scope_id &&
           memcmp(&a->sin6_addr, &b->sin6_addr, sizeof a->sin6_addr) == 0;
}

PyObject *address_of(const struct sockaddr_in6 *source, socklen_t length) {
    char host[NI_MAXHOST];
    if (getnameinfo((const struct sockaddr *)source, length, host, sizeof host, NULL, 0,
                    NI_NUMERICHOST) != 0) {
        PyErr_SetString(PyExc_OSError, "a source without an address");
        return NULL;
    }
    return Py_BuildValue("(si)", host, ntohs(source->sin6_port));
}

bool datagrams_init(Datagrams *datagrams) {
    if (datagrams->room != NULL)
        return true;
    datagrams->room = PyMem_Malloc(sizeof *datagrams->room * DRAIN_DATAGRAMS);
    if (datagrams->room == NULL) {
        PyErr_NoMemory();
        return false;
    }
    for (int i = 0; i < DRAIN_DATAGRAMS; i++) {
        datagrams->places[i].iov_base = datagrams->room[i];
        datagrams->places[i].iov_len = DATAGRAM_BYTES;
        struct msghdr *header = &datagrams->messages[i].msg_hdr;
        header->msg_name = &datagrams->sources[i];
        header->msg_iov = &datagrams->places[i];
        header->msg_iovlen = 1;
        header->msg_control = &datagrams->controls[i];
    }
    datagrams->used = DRAIN_DATAGRAMS;
    return true;
}

void datagrams_free(Datagrams *datagrams) {
    PyMem_Free(datagrams->room);
}

void request_times(int fd) {
    int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on);
}

static double seconds(const struct timespec *time) {
    return (double)time->tv_sec + (double)time->tv_nsec / 1e9;
}

/* How long a datagram has waited to be read, by the kernel's clock; 0 if that was set meanwhile. */
static double waited(struct msghdr *header, const struct timespec *now) {
    struct cmsghdr *control = CMSG_FIRSTHDR(header);
    struct timespec arrived;
    if (control == NULL || control->cmsg_level != SOL_SOCKET ||
        control->cmsg_type != SCM_TIMESTAMPNS || control->cmsg_len < CMSG_LEN(sizeof arrived))
        return 0;
    memcpy(&arrived, CMSG_DATA(control), sizeof arrived);
    double wait = seconds(now) - seconds(&arrived);
    return 0 < wait && wait < MAX_WAIT_S ? wait : 0;
}

int drain(Datagrams *datagrams, int fd, const Reading *reading, Deliver deliver, PyObject *to) {
    for (int i = 0; i < datagrams->used; i++) { /* which tell what was received, too */
        datagrams->messages[i].msg_hdr.msg_namelen = sizeof datagrams->sources[i];
        datagrams->messages[i].msg_hdr.msg_controllen = sizeof datagrams->controls[i];
    }
    int count = recvmmsg(fd, datagrams->messages, DRAIN_DATAGRAMS, MSG_DONTWAIT, NULL);
    datagrams->used = count > 0 ? count : 1;
    for (int i = 0; i < count; i++) { /* of all: those behind one that fails are others' */
        struct msghdr *header = &datagrams->messages[i].msg_hdr;
        PyObject *at = reading->waited
                           ? PyFloat_FromDouble(reading->now - waited(header, &reading->clock))
                           : Py_NewRef(reading->now_object);
        Datagram datagram = {datagrams->room[i], datagrams->messages[i].msg_len, header->msg_name,
                             header->msg_namelen, at};
        int done = at == NULL ? -1 : deliver(to, &datagram);
        Py_XDECREF(at);
        if (done < 0 && reading->failure->type == NULL)
            PyErr_Fetch(&reading->failure->type, &reading->failure->value,
                        &reading->failure->trace);
        else if (done < 0)
            PyErr_WriteUnraisable(to);
    }
    return count > 0 ? count : 0;
}

bool begin_reading(PyObject *const *args, Py_ssize_t given, Failure *failure, Reading *reading) {
    if (given != 2 || !PyFloat_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "read(now, waited)");
        return false;
    }
    *reading = (Reading){args[0], PyFloat_AsDouble(args[0]), args[1] == Py_True, {0}, failure};
    clock_gettime(CLOCK_REALTIME, &reading->clock); /* the one of SO_TIMESTAMPNS */
    return true;
}

PyObject *end_reading(const Reading *reading, long count) {
    Failure *failure = reading->failure;
    if (failure->type == NULL)
        return PyLong_FromLong(count);
    PyErr_Restore(failure->type, failure->value, failure->trace);
    return NULL;
}

#define STREAM_BYTES 65536 /* read at once of a connection */

PyObject *request_times_of(PyObject *module, PyObject *fd) {
    long number = PyLong_AsLong(fd);
    if (number == -1 && PyErr_Occurred())
        return NULL;
    request_times((int)number);
    Py_RETURN_NONE;
}

PyObject *read_stream(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    static uint8_t room[STREAM_BYTES]; /* the GIL guards it */
    if (given != 3 || !PyFloat_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "read_stream(fd, now, reader)");
        return NULL;
    }
    long fd = PyLong_AsLong(args[0]);
    if (fd == -1 && PyErr_Occurred())
        return NULL;
    Control control;
    struct iovec place = {room, sizeof room};
    struct msghdr header = {.msg_iov = &place,
                            .msg_iovlen = 1,
                            .msg_control = &control,
                            .msg_controllen = sizeof control};
    ssize_t size = recvmsg((int)fd, &header, MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EINTR))
        Py_RETURN_NONE;
    struct timespec clock;
    clock_gettime(CLOCK_REALTIME, &clock);
    double arrived = PyFloat_AsDouble(args[1]) - (size > 0 ? waited(&header, &clock) : 0);
    Py_ssize_t read = 0;
    if (size > 0 && Py_TYPE(args[2]) == media_reader_type) {
        read = media_read(args[2], room, size, arrived);
        if (read < 0)
            return NULL;
        if (read == size)
            Py_RETURN_NONE;
    }
    return Py_BuildValue("(y#d)", room + read, size > 0 ? (Py_ssize_t)size - read : 0, arrived);
}

PyObject *write_stream(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    char *data;
    Py_ssize_t size;
    if (given != 2 || !PyBytes_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "write_stream(fd, data)");
        return NULL;
    }
    long fd = PyLong_AsLong(args[0]);
    if ((fd == -1 && PyErr_Occurred()) || PyBytes_AsStringAndSize(args[1], &data, &size) < 0)
        return NULL;
    ssize_t written = send((int)fd, data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    return PyLong_FromSsize_t(written > 0 ? written : 0);
}
