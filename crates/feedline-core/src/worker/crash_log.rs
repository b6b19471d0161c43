//! What a worker had to say when it crashed or was asked where it is: its stack, written by a signal
//! handler into memory that outlives it.

use std::io;

use crate::sys::descriptor::Descriptor;
use crate::sys::memory::Shared;

/// Bytes that are kept; what is longer is cut at its end.
const BYTES: usize = 64 << 10;

/// The memory of one worker.
pub(crate) struct CrashLog {
    shared: Shared,
}

impl CrashLog {
    /// Empty, and the descriptor to which the worker writes.
    pub(crate) fn create() -> io::Result<(Descriptor, CrashLog)> {
        let (file, shared) = Shared::create("feedline-last-words", BYTES)?;
        Ok((file, CrashLog { shared }))
    }

    /// All that was written so far.
    pub(crate) fn text(&self) -> String {
        let mut bytes = vec![0; BYTES];
        self.shared.read(0, &mut bytes);
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(BYTES);
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write;

    #[test]
    fn what_was_written_to_the_descriptor_is_read_when_the_writer_is_gone() {
        let (file, words) = CrashLog::create().unwrap();
        assert_eq!(words.text(), "");
        let mut file = File::from(file.into_owned().unwrap());
        file.write_all(b"Fatal Python error: Segmentation fault\n").unwrap();
        drop(file);
        assert_eq!(words.text(), "Fatal Python error: Segmentation fault\n");
    }
}
