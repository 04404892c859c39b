"""Silero VAD (version 5, 16 kHz) as matrix products over a batch of windows.

The network: magnitudes of four overlapping 256-point Fourier transforms, four convolutions over
these frames with rectifiers, an LSTM cell and a logistic output. So few frames are left that every
frame of a convolution is one product with its taps stacked, without those that would meet the
padding. In a batch of 25 windows this takes half of ONNX Runtime's time, and equals it to 1e-5
(`offhook bench vad`).
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from offhook.pipeline.speech.vad import onnx_graph
from offhook.pipeline.speech.vad.vad import WINDOW

CONTEXT = 64
"""Samples of the previous window that precede each window."""
STATE = 256
"""Floats of recurrent state of one stream: output and cell of the LSTM."""

Floats = npt.NDArray[np.float32]

_ROW = CONTEXT + WINDOW
_FRAME = 256
_HOP = 128
_FRAMES = 4
_BINS = _FRAME // 2 + 1
_PADDED = _FRAME + (_FRAMES - 1) * _HOP
_WIDE, _NARROW = 128, 64
"""Channels of the convolutions; the LSTM has _WIDE."""
_BASIS = "stft.forward_basis_buffer"
_HALF = np.float32(0.5)


def _taps(weights: dict[str, Floats], layer: int) -> Floats:
    """Returns the weights of a convolution as [3 taps × channels in, channels out]."""
    kernel = weights[f"encoder.{layer}.reparam_conv.weight"]
    return np.ascontiguousarray(kernel.transpose(2, 1, 0).reshape(-1, len(kernel)))


def _rectify(values: Floats, bias: Floats) -> None:
    values += bias
    np.maximum(values, 0, out=values)


class Silero:
    """The network with the weights in an ONNX file as Pipecat has it. Construction takes 5 ms.
    Raises OSError if the file is missing, ValueError if it holds another network."""

    def __init__(self, path: Path) -> None:
        try:
            found = onnx_graph.weights(path.read_bytes())
        except IndexError as error:
            raise ValueError(f"{path.name} is not ONNX, or not all of it is here") from error
        prefixes = [
            name.removesuffix(_BASIS)
            for name, values in found.items()
            if name.endswith(_BASIS) and values.shape == (2 * _BINS, 1, _FRAME)
        ]  # the file's other branch is the network for 8 kHz
        if not prefixes:
            raise ValueError(f"{path.name} is not version 5 of Silero VAD")
        start = prefixes[0]
        weights = {n.removeprefix(start): v for n, v in found.items() if n.startswith(start)}

        # The windowed cosines are symmetric about the middle of a frame and the sines
        # antisymmetric: sums and differences of mirrored samples need half the products. Sample 0
        # has weight 0.
        basis = weights[_BASIS][:, 0]
        self._cosines = np.ascontiguousarray(basis[:_BINS, 1 : _HOP + 1].T)
        self._sines = np.ascontiguousarray(basis[_BINS:, 1:_HOP].T)

        taps = _taps(weights, 0)
        self._first, self._inner, self._last = taps[_BINS:], taps, taps[: 2 * _BINS]
        self._bias_0 = np.tile(weights["encoder.0.reparam_conv.bias"], _FRAMES)
        taps = _taps(weights, 1)
        self._early, self._late = taps[_WIDE:], taps
        self._bias_1 = np.tile(weights["encoder.1.reparam_conv.bias"], 2)
        self._both = _taps(weights, 2)[_NARROW:]
        self._bias_2 = weights["encoder.2.reparam_conv.bias"]
        self._middle = _taps(weights, 3)[_NARROW : 2 * _NARROW]
        self._bias_3 = weights["encoder.3.reparam_conv.bias"]

        # The logistic function is (1 + tanh(x / 2)) / 2: with the halves in the weights of the
        # input, forget and output gates, one tanh does for all gates.
        halves = np.repeat(np.array([0.5, 0.5, 1, 0.5], np.float32), _WIDE)
        inputs, recurrent = weights["decoder.rnn.weight_ih"], weights["decoder.rnn.weight_hh"]
        gates = np.concatenate((inputs, recurrent), axis=1).T * halves
        self._gates = np.ascontiguousarray(gates)
        biases = weights["decoder.rnn.bias_ih"] + weights["decoder.rnn.bias_hh"]
        self._gates_bias = biases * halves
        self._output = weights["decoder.decoder.2.weight"][0, :, 0] * _HALF
        self._output_bias = weights["decoder.decoder.2.bias"] * _HALF

    def run(self, rows: Floats, states: Floats) -> tuple[Floats, Floats]:
        """Returns the speech probabilities [n] and the new states [n, STATE] for windows with their
        context, [n, CONTEXT + WINDOW] of full scale 1, and their states; zeros at first."""
        output = np.empty((len(rows), _WIDE + STATE // 2), np.float32)
        self._encode(rows, output[:, :_WIDE])
        output[:, _WIDE:] = states[:, :_WIDE]
        gates = output @ self._gates
        gates += self._gates_bias
        np.tanh(gates, out=gates)
        admit, keep, new, show = (gates[:, at : at + _WIDE] for at in range(0, 4 * _WIDE, _WIDE))
        states_now = np.empty_like(states)
        heard, cell = states_now[:, :_WIDE], states_now[:, _WIDE:]
        # (1 + keep) / 2 · cell + (1 + admit) / 2 · new
        admit += 1
        admit *= new
        np.add(keep, 1, out=cell)
        cell *= states[:, _WIDE:]
        cell += admit
        cell *= _HALF
        np.tanh(cell, out=heard)
        show += 1
        heard *= show
        heard *= _HALF
        logits = np.maximum(heard, 0) @ self._output
        logits += self._output_bias
        probabilities = np.tanh(logits, out=logits)
        probabilities += 1
        probabilities *= _HALF
        return probabilities, states_now

    def _encode(self, rows: Floats, encoded: Floats) -> None:
        """Computes what the LSTM gets, [n, 128]."""
        count = len(rows)
        spectra = self._magnitudes(rows)
        one = np.empty((count, _FRAMES * _WIDE), np.float32)
        np.matmul(spectra[:, : 2 * _BINS], self._first, out=one[:, :_WIDE])
        np.matmul(spectra[:, : 3 * _BINS], self._inner, out=one[:, _WIDE : 2 * _WIDE])
        np.matmul(spectra[:, _BINS:], self._inner, out=one[:, 2 * _WIDE : 3 * _WIDE])
        np.matmul(spectra[:, 2 * _BINS :], self._last, out=one[:, 3 * _WIDE :])
        _rectify(one, self._bias_0)
        # From here on every other frame: two, then one.
        two = np.empty((count, 2 * _NARROW), np.float32)
        np.matmul(one[:, : 2 * _WIDE], self._early, out=two[:, :_NARROW])
        np.matmul(one[:, _WIDE:], self._late, out=two[:, _NARROW:])
        _rectify(two, self._bias_1)
        three = two @ self._both
        _rectify(three, self._bias_2)
        np.matmul(three, self._middle, out=encoded)
        _rectify(encoded, self._bias_3)

    def _magnitudes(self, rows: Floats) -> Floats:
        """Returns the magnitudes of the frames, [n, frames × bins]."""
        count = len(rows)
        sound = np.empty((count, _PADDED), np.float32)
        sound[:, :_ROW] = rows
        sound[:, _ROW:] = rows[:, _ROW - 2 : 2 * _ROW - 2 - _PADDED : -1]  # mirrored at the end
        step, size = sound.strides
        frames = np.lib.stride_tricks.as_strided(
            sound, (count, _FRAMES, _FRAME), (step, _HOP * size, size)
        )
        ahead, behind = frames[:, :, 1:_HOP], frames[:, :, :_HOP:-1]
        even = np.empty((count, _FRAMES, _HOP), np.float32)
        np.add(ahead, behind, out=even[:, :, :-1])
        even[:, :, -1] = frames[:, :, _HOP]
        odd = ahead - behind
        real = even.reshape(-1, _HOP) @ self._cosines
        imaginary = odd.reshape(-1, _HOP - 1) @ self._sines
        real *= real
        imaginary *= imaginary
        real += imaginary
        magnitudes: Floats = np.sqrt(real, out=real).reshape(count, _FRAMES * _BINS)
        return magnitudes
