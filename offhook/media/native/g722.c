/* G.722 at 64 kbit/s of g722.py, which has FFmpeg's: ITU-T G.722, whose blocks the functions name. */

#include "native.h"

PyTypeObject *g722_decoder_type, *g722_encoder_type;

#define PIECE 480 /* samples at 16 kHz, worked on at a time */

/* --- tables of the Recommendation --- */

/* Every second coefficient of the QMF; those between are the same ones backwards. */
static const int16_t qmf[QMF_TAPS / 2] = {3,   -11,  12,  32,   -210, 951,
                                          3876, -805, 362, -156, 53,   -11};
#define LEVELS 30
/* Q6: decision levels of the lower band's quantizer. */
static const int16_t low_levels[LEVELS] = {
    0,   35,  72,  110, 150,  190,  233,  276,  323,  370,  422,  473,  530,  587,  650,
    714, 786, 858, 940, 1023, 1121, 1219, 1339, 1458, 1612, 1765, 1980, 2195, 2557, 2919};
/* QM6: output of the lower band's inverse quantizer with all six bits, */
static const int16_t low_values[64] = {
    -136,  -136,  -136,  -136,  -24808, -21904, -19008, -16704, -14984, -13512, -12280,
    -11192, -10232, -9360, -8576, -7856, -7192, -6576, -6000, -5456, -4944, -4464,
    -4008, -3576, -3168, -2776, -2400, -2032, -1688, -1360, -1040, -728,  24808,
    21904, 19008, 16704, 14984, 13512, 12280, 11192, 10232, 9360,  8576,  7856,
    7192,  6576,  6000,  5456,  4944,  4464,  4008,  3576,  3168,  2776,  2400,
    2032,  1688,  1360,  1040,  728,   432,   136,   -432,  -136};
/* QM4: with four, by which both sides adapt, */
static const int16_t low_adapting[16] = {0,     -20456, -12896, -8968, -6288, -4240, -2584, -1200,
                                         20456, 12896,  8968,   6288,  4240,  2584,  1200,  0};
/* WL of RL42: and by how much its scale factor's logarithm then grows. */
static const int16_t low_growth[16] = {-60, 3042, 1198, 538, 334, 172, 58, -30,
                                       3042, 1198, 538, 334, 172, 58, -30, -60};
/* QM2 and WH of RH2, of the higher band. */
static const int16_t high_values[4] = {-7408, -1616, 7408, 1616};
static const int16_t high_growth[4] = {798, -214, 798, -214};
#define HIGH_LEVEL 564
/* ILB: powers of two between 2048 and 4096. */
static const int16_t powers[32] = {2048, 2093, 2139, 2186, 2233, 2282, 2332, 2383,
                                   2435, 2489, 2543, 2599, 2656, 2714, 2774, 2834,
                                   2896, 2960, 3025, 3091, 3158, 3228, 3298, 3371,
                                   3444, 3520, 3597, 3676, 3756, 3838, 3922, 4008};
#define LOW_MOST 18432
#define HIGH_MOST 22528
#define LOW_SHIFT 8
#define HIGH_SHIFT 10

static int saturated(int value) {
    return value < -32768 ? -32768 : value > 32767 ? 32767 : value;
}

static int limited(int value, int least, int most) {
    return value < least ? least : value > most ? most : value;
}

/* --- a band's predictor and scale factor --- */

static void reset(G722 *state) {
    memset(state, 0, sizeof *state);
    state->low.scale = 32;
    state->high.scale = 8;
}

/* LOGSCL and SCALEL, LOGSCH and SCALEH */
static void scale(Band *band, int growth, int most, int shift) {
    band->log_scale = limited((band->log_scale * 127 >> 7) + growth, 0, most);
    shift -= band->log_scale >> 11;
    int power = powers[band->log_scale >> 6 & 31];
    band->scale = (shift < 0 ? power << -shift : power >> shift) << 2;
}

/* RECONS to PREDIC: adapts to a quantized difference and predicts the next sample. */
static void predict(Band *band, int difference) {
    int partial = band->zeros_predict + difference;
    int reconstructed = saturated(band->predicted + difference);
    bool same = (partial < 0) == (band->partial[0] < 0);
    bool same_as_second = (partial < 0) == (band->partial[1] < 0);

    int wide = saturated(band->poles[0] * 4); /* UPPOL2 */
    wide = same ? (wide == -32768 ? 32767 : -wide) : wide;
    int second = (wide >> 7) + (same_as_second ? 128 : -128) + (band->poles[1] * 32512 >> 15);
    second = limited(second, -12288, 12288);
    int first = (same ? 192 : -192) + (band->poles[0] * 32640 >> 15); /* UPPOL1 */
    first = limited(first, second - 15360, 15360 - second);

    int zeros = 0; /* UPZERO and FILTEZ */
    for (int i = ZEROS - 1; i >= 0; i--) {
        int step = difference == 0 ? 0 : (difference < 0) == (band->differences[i] < 0) ? 128 : -128;
        band->zeros[i] = (band->zeros[i] * 32640 >> 15) + step;
        band->differences[i] = i ? band->differences[i - 1] : difference;
        zeros += band->zeros[i] * 2 * band->differences[i] >> 15;
    }
    band->poles[0] = first;
    band->poles[1] = second;
    band->partial[1] = band->partial[0];
    band->partial[0] = partial;
    /* FILTEP */
    int poles = (first * saturated(2 * reconstructed) >> 15) +
                (second * saturated(2 * band->reconstructed) >> 15);
    band->reconstructed = reconstructed;
    band->zeros_predict = zeros;
    band->predicted = saturated(poles + zeros); /* only here, as FFmpeg: sums of 16 bits fit */
}

static void adapt_low(Band *band, int code) {
    int difference = band->scale * low_adapting[code >> 2] >> 15;
    scale(band, low_growth[code >> 2], LOW_MOST, LOW_SHIFT);
    predict(band, difference);
}

static void adapt_high(Band *band, int code) {
    int difference = band->scale * high_values[code] >> 15;
    scale(band, high_growth[code], HIGH_MOST, HIGH_SHIFT);
    predict(band, difference);
}

/* --- decoding --- */

/* Two samples of the QMF, from its history of sums and differences. */
static void synthesize(G722 *state, int low, int high, int16_t *out) {
    memmove(state->history, state->history + 2, sizeof(int16_t) * (QMF_TAPS - 2));
    state->history[QMF_TAPS - 2] = (int16_t)(low + high);
    state->history[QMF_TAPS - 1] = (int16_t)(low - high);
    int even = 0, odd = 0;
    for (int i = 0; i < QMF_TAPS / 2; i++) {
        odd += state->history[2 * i] * qmf[i];
        even += state->history[2 * i + 1] * qmf[QMF_TAPS / 2 - 1 - i];
    }
    out[0] = (int16_t)saturated(even >> 11);
    out[1] = (int16_t)saturated(odd >> 11);
}

void g722_decode(G722Decoder *decoder, const uint8_t *payload, Py_ssize_t bytes, int16_t *out) {
    G722 *state = &decoder->state;
    for (Py_ssize_t i = 0; i < bytes; i++, out += 2) {
        int low_code = payload[i] & 0x3F, high_code = payload[i] >> 6;
        int low = (state->low.scale * low_values[low_code] >> 15) + state->low.predicted;
        int high = (state->high.scale * high_values[high_code] >> 15) + state->high.predicted;
        adapt_low(&state->low, low_code);
        adapt_high(&state->high, high_code);
        synthesize(state, limited(low, -16384, 16383), limited(high, -16384, 16383), out);
    }
}

static int decoder_init(PyObject *self, PyObject *args, PyObject *keywords) {
    G722Decoder *decoder = (G722Decoder *)self;
    PyObject *history;
    static char *names[] = {"history", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O", names, &history))
        return -1;
    if (decoder->history != NULL || !PyObject_TypeCheck(history, history_type)) {
        PyErr_SetString(PyExc_TypeError, "history of another kind");
        return -1;
    }
    decoder->history = (History *)Py_NewRef(history);
    reset(&decoder->state);
    return 0;
}

static void decoder_dealloc(PyObject *self) {
    Py_XDECREF((PyObject *)((G722Decoder *)self)->history);
    free_object(self);
}

static PyObject *decoder_decode(PyObject *self, PyObject *payload) {
    G722Decoder *decoder = (G722Decoder *)self;
    char *data;
    Py_ssize_t bytes;
    int16_t *out;
    if (decoder->history == NULL) {
        PyErr_SetString(PyExc_ValueError, "not initialised");
        return NULL;
    }
    if (PyBytes_AsStringAndSize(payload, &data, &bytes) < 0)
        return NULL;
    PyObject *pcm = new_pcm(2 * bytes, &out);
    if (pcm == NULL)
        return NULL;
    g722_decode(decoder, (uint8_t *)data, bytes, out);
    return history_continued(decoder->history, pcm, out, 2 * bytes);
}

static PyMethodDef decoder_methods[] = {
    {"decode", decoder_decode, METH_O, "Decode one payload to 16 kHz."},
    {NULL},
};

static PyType_Slot decoder_slots[] = {
    {Py_tp_doc, "Decodes one G.722 stream."},
    {Py_tp_init, decoder_init},
    {Py_tp_dealloc, decoder_dealloc},
    {Py_tp_methods, decoder_methods},
    {0},
};

PyType_Spec g722_decoder_spec = {"offhook.media.native._native.G722Decoder", sizeof(G722Decoder), 0,
                                 Py_TPFLAGS_DEFAULT, decoder_slots};

/* --- encoding --- */

/* QUANTL */
static int low_code(const Band *band, int sample) {
    int difference = saturated(sample - band->predicted);
    int size = difference < 0 ? -(difference + 1) : difference, level = 1;
    while (level < LEVELS && size >= low_levels[level] * band->scale >> 12)
        level++;
    if (difference >= 0)
        return 62 - level;
    return level < 3 ? 64 - level : 34 - level;
}

/* QUANTH */
static int high_code(const Band *band, int sample) {
    int difference = saturated(sample - band->predicted);
    int size = difference < 0 ? -(difference + 1) : difference;
    bool far = size >= HIGH_LEVEL * band->scale >> 12;
    return difference < 0 ? (far ? 0 : 1) : (far ? 2 : 3);
}

bool g722_encode(G722Encoder *encoder, const int16_t *pcm, Py_ssize_t bytes, uint8_t *out) {
    G722 *state = &encoder->state;
    int16_t sound[PIECE];
    for (int count; bytes > 0; pcm += 3 * count, bytes -= count) {
        count = bytes < PIECE / 2 ? (int)bytes : PIECE / 2;
        if (!fir_process(encoder->fir, pcm, 3 * count, sound))
            return false;
        for (int i = 0; i < count; i++) {
            memmove(state->history, state->history + 2, sizeof(int16_t) * (QMF_TAPS - 2));
            memcpy(state->history + QMF_TAPS - 2, sound + 2 * i, 2 * sizeof(int16_t));
            int even = 0, odd = 0;
            for (int tap = 0; tap < QMF_TAPS / 2; tap++) {
                odd += state->history[2 * tap] * qmf[tap];
                even += state->history[2 * tap + 1] * qmf[QMF_TAPS / 2 - 1 - tap];
            }
            int low = low_code(&state->low, (even + odd) >> 14);
            int high = high_code(&state->high, (even - odd) >> 14);
            adapt_low(&state->low, low);
            adapt_high(&state->high, high);
            *out++ = (uint8_t)(high << 6 | low);
        }
    }
    return true;
}

static int encoder_init(PyObject *self, PyObject *args, PyObject *keywords) {
    G722Encoder *encoder = (G722Encoder *)self;
    PyObject *fir;
    static char *names[] = {"fir", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O", names, &fir))
        return -1;
    if (encoder->fir != NULL || !PyObject_TypeCheck(fir, fir_type) || ((Fir *)fir)->up != 2 ||
        ((Fir *)fir)->down != 3) {
        PyErr_SetString(PyExc_TypeError, "filter of another kind");
        return -1;
    }
    encoder->fir = (Fir *)Py_NewRef(fir);
    reset(&encoder->state);
    return 0;
}

static void encoder_dealloc(PyObject *self) {
    Py_XDECREF((PyObject *)((G722Encoder *)self)->fir);
    free_object(self);
}

static PyObject *encoder_encode(PyObject *self, PyObject *pcm) {
    G722Encoder *encoder = (G722Encoder *)self;
    Py_buffer view;
    PyObject *payload = NULL;
    if (encoder->fir == NULL) {
        PyErr_SetString(PyExc_ValueError, "not initialised");
        return NULL;
    }
    if (!view_pcm(pcm, &view))
        return NULL;
    if (view.len % 6)
        PyErr_SetString(PyExc_ValueError, "the block is not a whole number of periods");
    else if ((payload = PyBytes_FromStringAndSize(NULL, view.len / 6)) != NULL &&
             !g722_encode(encoder, view.buf, view.len / 6, (uint8_t *)PyBytes_AsString(payload))) {
        Py_CLEAR(payload);
        PyErr_NoMemory();
    }
    PyBuffer_Release(&view);
    return payload;
}

static PyMethodDef encoder_methods[] = {
    {"encode", encoder_encode, METH_O, "Encode one packet of 24 kHz."},
    {NULL},
};

static PyType_Slot encoder_slots[] = {
    {Py_tp_doc, "Encodes one G.722 stream."},
    {Py_tp_init, encoder_init},
    {Py_tp_dealloc, encoder_dealloc},
    {Py_tp_methods, encoder_methods},
    {0},
};

PyType_Spec g722_encoder_spec = {"offhook.media.native._native.G722Encoder", sizeof(G722Encoder), 0,
                                 Py_TPFLAGS_DEFAULT, encoder_slots};
