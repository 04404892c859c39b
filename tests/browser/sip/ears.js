// What the far end of a peer connection says, and whether it takes keys.

/** The strongest frequency that is heard, in Hz. */
export async function hears(connection) {
  const receiver = connection.getReceivers().find(({ track }) => track.kind === "audio");
  const stream = new MediaStream([receiver.track]);
  const audio = new Audio(); // Chromium decodes what an element plays
  audio.srcObject = stream;
  await audio.play();
  const context = new AudioContext();
  const analyser = new AnalyserNode(context, { fftSize: 16384 });
  context.createMediaStreamSource(stream).connect(analyser);
  await new Promise((then) => setTimeout(then, 1000));
  const levels = new Float32Array(analyser.frequencyBinCount);
  analyser.getFloatFrequencyData(levels);
  const strongest = levels.indexOf(Math.max(...levels));
  const hz = (strongest * context.sampleRate) / analyser.fftSize;
  await context.close();
  return hz;
}

/** Whether keys can be pressed by RFC 4733. */
export function takesKeys(connection) {
  return connection.getSenders().find(({ track }) => track?.kind === "audio").dtmf.canInsertDTMF;
}
