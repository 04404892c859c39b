/* The compiled path of a packet. The Python classes of the same names are the specification: every
   function here must return what theirs does, to the last sample and counter, and leaves whatever
   is not the usual case to them. Constants are compared by tests/media/native. */

#ifndef OFFHOOK_NATIVE_H
#define OFFHOOK_NATIVE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* recvmmsg */
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <math.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#define RATE_IN 16000
#define SAMPLES_IN 320
#define SAMPLES_OUT 480

/* resample.py */
typedef struct {
    PyObject_HEAD
    int up, down, history;
    int width;      /* of the taps that are not zero */
    int *starts;    /* [up], where in the window they begin */
    double *taps;   /* [up][width], each row one phase */
    double *past;   /* [history], the end of the input before */
    double *buffer; /* [history + room], and `width` more, for reading beyond */
    int room;
} Fir;

/* Resamples `samples` samples, a multiple of `down`, into `out`. False without memory. */
bool fir_process(Fir *fir, const int16_t *pcm, int samples, int16_t *out);

/* rooms/mixing.py */
PyObject *mean_square(PyObject *module, PyObject *pcm);
PyObject *mix_unlimited(PyObject *module, PyObject *const *args, Py_ssize_t given);

/* conceal.py */
#define HISTORY 480
typedef struct {
    PyObject_HEAD
    long long concealed;
    int16_t sound[HISTORY];
} History;

void history_append(History *history, const int16_t *pcm, Py_ssize_t samples);
/* Concealer.process of a decoded block, a reference that it takes. NULL with an exception set. */
PyObject *history_continued(History *history, PyObject *pcm, const int16_t *data,
                            Py_ssize_t samples);

/* g711.py */
#define G711_RATE 8000

typedef struct {
    PyObject_HEAD
    int16_t levels[256];
    Fir *fir;
    History *history;
} G711Decoder;

/* Decodes into 2 * bytes samples, without concealment. False without memory. */
bool g711_decode(G711Decoder *decoder, const uint8_t *payload, Py_ssize_t bytes, int16_t *out);

typedef struct {
    PyObject_HEAD
    Py_buffer codes; /* uint8[65536], Python's: too large for each call to have its own */
    Fir *fir;
} G711Encoder;

/* Encodes 3 * bytes samples at 24 kHz. False without memory. */
bool g711_encode(G711Encoder *encoder, const int16_t *pcm, Py_ssize_t bytes, uint8_t *out);

/* g722.py */
#define G722_CLOCK_RATE 8000
#define QMF_TAPS 24
#define ZEROS 6

/* The adaptive predictor of a band, with two poles and ZEROS zeros, and its quantizer's scale. */
typedef struct {
    int predicted, zeros_predict, reconstructed, scale, log_scale;
    int partial[2], poles[2], zeros[ZEROS], differences[ZEROS];
} Band;

typedef struct {
    Band low, high;
    int16_t history[QMF_TAPS];
} G722;

typedef struct {
    PyObject_HEAD
    G722 state;
    History *history;
} G722Decoder;

/* Decodes into 2 * bytes samples, without concealment. */
void g722_decode(G722Decoder *decoder, const uint8_t *payload, Py_ssize_t bytes, int16_t *out);

typedef struct {
    PyObject_HEAD
    G722 state;
    Fir *fir;
} G722Encoder;

/* Encodes 3 * bytes samples at 24 kHz. False without memory. */
bool g722_encode(G722Encoder *encoder, const int16_t *pcm, Py_ssize_t bytes, uint8_t *out);

/* opus.py: libopus, whose functions and states are Python's. */
#define OPUS_RATE 48000
#define OPUS_BYTES 1275

typedef struct {
    PyObject_HEAD
    PyObject *memory; /* what frees `state` */
    void *state;
    int (*decode)(void *, const uint8_t *, int32_t, int16_t *, int, int);
    int (*count)(const uint8_t *, int32_t, int32_t);
    int failure; /* what libopus said of the payload that Python will decode next; 0: nothing yet */
} OpusDecoder;

/* The samples at 16 kHz of a payload; 0 of one that is stereo or none. */
int opus_packet_samples(const OpusDecoder *decoder, const uint8_t *payload, Py_ssize_t bytes);
/* Decodes that many samples, while other threads run. False, with `failure` set, if libopus does
   not; then its state has changed, and the payload must not be decoded again. */
bool decode_opus(OpusDecoder *decoder, const uint8_t *payload, Py_ssize_t bytes, int samples,
                 int16_t *out);

typedef struct {
    PyObject_HEAD
    PyObject *memory;
    void *state;
    int32_t (*encode)(void *, const int16_t *, int, uint8_t *, int32_t);
} OpusEncoder;

/* Encodes a tick of 480 samples into at most OPUS_BYTES, while other threads run. Returns their
   number, below 1 if libopus fails. */
int encode_opus(OpusEncoder *encoder, const int16_t *pcm, uint8_t *out);

/* jitter.py */
#define MIN_DELAY 0.020
#define MAX_DELAY 0.400
#define QUANTILE 0.97
#define FORGET_FACTOR 0.99
#define BUCKET 0.005
#define BUCKETS 80
#define PRIOR_PACKETS 40
#define WINDOW 2.0
#define IDLE 1.0
#define MAX_TIME_OFFSET 2.0
#define MAX_DROPOUT 3000
#define MAX_MISORDER 100
#define MAX_SPAN 3.2
#define MAX_PACKETS 320
#define STILL_PACKETS 4

typedef unsigned __int128 Bits;

typedef enum { QUEUED, LATE, DUPLICATE, OUT_OF_RANGE, RESTARTED, NO_MEMORY } Arrival;

typedef struct {
    int64_t number, timestamp;
    double arrived;
    long payload_type;
    PyObject *payload;
    int64_t non_audio;
} Queued;

typedef struct {
    PyObject_HEAD
    int clock_rate;
    bool begun; /* there is a position */
    char repairable;
    int64_t position;
    long long dropped;
    Queued *packets;
    int count, room;
    double target, histogram[BUCKETS + 1], total, weight, above;
    int bucket;
    double fastest, previous, current, window_end;
    double last_arrival;
    int64_t non_audio, restart_at, highest, highest_timestamp, repeated, stamped, shift;
    uint32_t sent_timestamp;
    int packet_ticks;
    Bits seen, seen_non_audio;
} JitterBuffer;

Arrival jitter_insert(JitterBuffer *buffer, long payload_type, uint16_t sequence_number,
                      uint32_t timestamp, PyObject *payload, double now);
double jitter_slack(const JitterBuffer *buffer, int64_t timestamp, double now);
/* Removes the first packet, whose payload is then the caller's. */
Queued jitter_take(JitterBuffer *buffer);
/* The members of jitter.Arrival, in the order of the enumeration above, and jitter.Queued. */
PyObject *jitter_use_types(PyObject *module, PyObject *args);

/* rtcp.py */
#define MAX_JITTER_STEP_S 5.0

typedef struct {
    PyObject_HEAD
    long long ssrc, received, clock_rate, base, cycles, max_sequence, bad_sequence;
    long long last_timestamp, expected_prior, received_prior;
    double jitter, last_at;
} Reception;

/* `timestamp` is -1 if there is none. */
void reception_receive(Reception *reception, uint16_t sequence_number, int64_t timestamp,
                       double now);

/* sender.py */
#define DTX_BYTES 2

/* receiver.py */
#define TOLERANCE 0.002
#define GOOD_FIT 0.9
#define MIN_PERIOD 40
#define SAMPLES_10_MS 160

/* AudioReceiver.accept: 1, 0, or -1 with an exception set. */
int receiver_accept(PyObject *receiver, const uint8_t *data, Py_ssize_t size, double now);
/* The same of a packet without its header, in the format played last. */
int receiver_take(PyObject *receiver, uint32_t ssrc, uint16_t number, uint32_t timestamp,
                  const uint8_t *payload, Py_ssize_t bytes, double now);

/* packets.py and media_form.py, of carriers */
#define GAP_MS 60
#define MAX_DIGITS 18
#define MAX_FIELDS 8
#define MAX_LEARNED_CHARS 8192 /* of longer messages Python takes care */

/* MediaReader.read: the bytes read, or -1 with an exception set. */
Py_ssize_t media_read(PyObject *reader, const uint8_t *data, Py_ssize_t size, double now);
/* Prepares what stream.c looks up. */
void base64_init(void);

/* sockets.c */
#define DATAGRAM_BYTES 2048 /* longer ones are cut */
#define DRAIN_DATAGRAMS 64

/* Whether two addresses, IPv4 or IPv6, are the same. */
bool same_source(const struct sockaddr_in6 *a, const struct sockaddr_in6 *b);
/* An IP address and a port, as Python has them. NULL with an exception set. */
PyObject *address_of(const struct sockaddr_in6 *source, socklen_t length);

typedef union {
    struct cmsghdr header; /* aligns it */
    char room[CMSG_SPACE(sizeof(struct timespec))];
} Control;

/* Room for what is read at once. */
typedef struct {
    Control controls[DRAIN_DATAGRAMS];
    struct mmsghdr messages[DRAIN_DATAGRAMS];
    struct iovec places[DRAIN_DATAGRAMS];
    struct sockaddr_in6 sources[DRAIN_DATAGRAMS]; /* or IPv4 addresses */
    uint8_t (*room)[DATAGRAM_BYTES];
    int used; /* those that the last read has changed */
} Datagrams;

/* False with an exception set. */
bool datagrams_init(Datagrams *datagrams);
void datagrams_free(Datagrams *datagrams);

typedef struct {
    uint8_t *data;
    Py_ssize_t size;
    const struct sockaddr_in6 *source; /* or an IPv4 address */
    socklen_t source_length;
    PyObject *arrived; /* a float */
} Datagram;

/* What the first datagram that failed has raised. */
typedef struct {
    PyObject *type, *value, *trace;
} Failure;

/* One reading of sockets: `waited` if datagrams may have waited, and have arrived when the kernel
   says so; else `now`. */
typedef struct {
    PyObject *now_object;
    double now;
    bool waited;
    struct timespec clock;
    Failure *failure;
} Reading;

/* Does with a datagram what is to be done; -1 with an exception set. */
typedef int (*Deliver)(PyObject *to, Datagram *datagram);

/* Has the kernel note when each datagram of a socket arrives. */
void request_times(int fd);
/* Takes the arguments (now, waited). False with an exception set. */
bool begin_reading(PyObject *const *args, Py_ssize_t given, Failure *failure, Reading *reading);
/* Delivers what has arrived at a socket, at most DRAIN_DATAGRAMS; returns how many. One that fails
   leaves the others alone. */
int drain(Datagrams *datagrams, int fd, const Reading *reading, Deliver deliver, PyObject *to);
/* Returns the count, or raises the first failure. */
PyObject *end_reading(const Reading *reading, long count);

/* Has the kernel note when the data of a connection arrives. */
PyObject *request_times_of(PyObject *module, PyObject *fd);
/* What has arrived at a connection, at most STREAM_BYTES of it, and when the last of that did, given
   its file descriptor, the time and a MediaReader that first reads what it can, or None. None if
   nothing else has; empty at the end of the connection, or if it is broken. */
PyObject *read_stream(PyObject *module, PyObject *const *args, Py_ssize_t given);
/* Writes bytes to a connection; returns how many it has taken, 0 also if it is broken. */
PyObject *write_stream(PyObject *module, PyObject *const *args, Py_ssize_t given);

/* port.c */
#define READY_PORTS 64

/* RtpLeg.receive_rtp; `receiver` is the leg's. 0, or -1 with an exception set. */
int leg_receive_rtp(PyObject *leg, PyObject *receiver, const uint8_t *data, Py_ssize_t size,
                    PyObject *now);
/* Whether a packet of RTP and RTCP on one port is RTCP (RFC 5761 section 4). */
static inline bool is_rtcp(const uint8_t *data) {
    return 192 <= data[1] && data[1] <= 223;
}

/* srtp.c */
#define SRTP_BYTES 1500 /* pylibsrtp takes no longer packets */

typedef struct {
    PyObject_HEAD
    PyObject *session; /* pylibsrtp's, which frees `srtp` */
    void *srtp;
    int (*protect_rtp)(void *, void *, int *);
    int (*unprotect_rtp)(void *, void *, int *);
    int (*unprotect_rtcp)(void *, void *, int *);
} Srtp;

/* A new numpy array of int16, and its samples. NULL with an exception set. */
PyObject *new_pcm(Py_ssize_t samples, int16_t **data);
/* Reads a contiguous array of int16; the caller releases the view. False with an exception set. */
bool view_pcm(PyObject *object, Py_buffer *view);

/* Whether an attribute is this very object; false with an exception set if there is none. */
bool attribute_is(PyObject *of, const char *name, PyObject *object);
/* The address that a number is; NULL with an exception set if it is none. */
void *pointer_of(PyObject *number);
/* Puts a reference that the caller owned in place of another. */
void replace(PyObject **place, PyObject *object);
/* Frees an object of a heap type. */
void free_object(PyObject *self);

#define METHOD(function) ((PyCFunction)(void (*)(void))(function))

extern PyType_Spec fir_spec, history_spec, g711_decoder_spec, g711_encoder_spec, g722_decoder_spec,
    g722_encoder_spec, inbound_spec, jitter_spec, media_reader_spec, media_writer_spec,
    opus_decoder_spec, opus_encoder_spec, packetizer_spec, port_spec, ports_spec, reception_spec,
    stats_spec, receiver_spec, sender_spec, shared_port_spec, srtp_spec;
extern PyTypeObject *fir_type, *history_type, *g711_decoder_type, *g711_encoder_type,
    *g722_decoder_type, *g722_encoder_type, *inbound_type, *jitter_type, *media_reader_type, *opus_decoder_type, *opus_encoder_type,
    *packetizer_type, *port_type, *reception_type, *receiver_type, *srtp_type, *stats_type;

#endif
