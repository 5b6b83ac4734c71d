//! Both sides of a window: a rank that closes its own before a step, and a rank of a clone that reads. Converts types
//! and moves bytes; in which order, `forebay_agent::forks::read_lease` says.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
    sync::{Arc, Mutex, PoisonError, atomic},
    time::{Duration, Instant},
};

use forebay_agent::{
    forks::read_lease::{
        self, Close, Closing, Confirmation, ConfirmationWait, LeaseOutcome, LeaseWords, NextRead, PIECE_BYTES, PieceReader,
    },
    host::shared::SharedFile,
};
use forebay_contract::read_lease::CLOSED;
use forebay_digest::{Digest, STRETCH_BYTES};
use pyo3::{
    exceptions::{PyConnectionAbortedError, PyTimeoutError, PyValueError},
    prelude::*,
    types::PyBytes,
};

use crate::{
    CallerMemory, SIGNALS_EVERY_BYTES,
    fork::{borrowed, duration},
    mapped::{self, Mapped},
    one_pass,
};

/// Alignment of pieces in the copy-on-write buffer, in bytes.
const ALIGNMENT_BYTES: usize = 64;
/// Pieces but the last are digested whole.
const _: () = assert!(PIECE_BYTES.is_multiple_of(STRETCH_BYTES));
/// Pause between two checks of a reader for a piece in the copy-on-write buffer.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// A rank's window, from its point to its next step.
#[pyclass(frozen)]
pub(crate) struct Window {
    lease: read_lease::ReadLease,
    pieces: Vec<CallerMemory>,
    /// Number of each tensor's first piece, and of all pieces.
    firsts: Vec<usize>,
    early: Mutex<EarlyClosed>,
}

/// Pieces that were closed before the window was.
struct EarlyClosed {
    /// For each piece whether it is one of them.
    closed: Vec<bool>,
    aside: Aside,
}

/// Use of the copy-on-write buffer.
#[derive(Clone, Copy, Default)]
struct Aside {
    used: usize,
    copied: usize,
    /// Bytes that a reader lacked, and that were not copied.
    left: usize,
    /// The readers that lack these, a bit each.
    lose: u64,
}

#[pymethods]
impl Window {
    /// For tensors that lie at these addresses, with these lengths, and so many readers.
    #[new]
    fn new(tensors: Vec<(usize, usize)>, readers: usize) -> PyResult<Self> {
        let tensors: Vec<_> = tensors
            .into_iter()
            .map(|(address, length)| CallerMemory::new(address, length))
            .collect::<PyResult<_>>()?;
        let mut firsts = vec![0];
        for tensor in &tensors {
            firsts.push(firsts[firsts.len() - 1] + tensor.length.div_ceil(PIECE_BYTES));
        }
        let pieces: Vec<_> = tensors.into_iter().flat_map(pieces_of).collect();
        let lease = read_lease::ReadLease::create(pieces.len(), readers)?;
        let early = Mutex::new(EarlyClosed {
            closed: vec![false; pieces.len()],
            aside: Aside::default(),
        });
        Ok(Self {
            lease,
            pieces,
            firsts,
            early,
        })
    }

    /// Its shared memory, whose descriptor stays the object's.
    #[getter]
    fn descriptor(&self) -> i32 {
        self.lease.descriptor().as_raw_fd()
    }

    /// Closes some tensors, by number: these may change after that, and readers go on with the others. Copies what a
    /// reader lacks as `close` does. Gives how many bytes were lacking and were not copied: then close the window.
    fn close_some(&self, py: Python<'_>, tensors: Vec<usize>, aside: usize, length: usize, stall_s: f64) -> PyResult<usize> {
        let (aside, deadline) = (CallerMemory::new(aside, length)?, Instant::now() + duration(stall_s)?);
        let mut pieces = Vec::new();
        for tensor in tensors {
            let (Some(first), Some(end)) = (self.firsts.get(tensor), self.firsts.get(tensor + 1)) else {
                return Err(PyValueError::new_err(format!("there is no tensor {tensor}")));
            };
            pieces.extend(*first..*end);
        }
        Ok(py.detach(|| self.close_pieces(&pieces, aside, deadline)))
    }

    /// Closes it: the tensors may change after that. Copies what a reader lacks to the copy-on-write buffer, which
    /// has `length` bytes at `aside`, for `stall_s` seconds at most. Gives how many bytes were copied, how many were
    /// lacking and were not, and which readers lack them, a bit each.
    fn close(&self, py: Python<'_>, aside: usize, length: usize, stall_s: f64) -> PyResult<(usize, usize, u64)> {
        let (aside, deadline) = (CallerMemory::new(aside, length)?, Instant::now() + duration(stall_s)?);
        let mut closing = Closing::new(self.pieces.len(), LeaseOutcome::Kept);
        let used = self.early.lock().unwrap_or_else(PoisonError::into_inner).aside;
        if used.left > 0 {
            closing.give_up();
        }
        // Most often nobody lacks anything, and to release the interpreter's lock could take longer than this.
        let used = match self.look(&mut closing) {
            None => used,
            Some(first) => py.detach(|| self.copy_aside(closing, first, aside, used, deadline)),
        };
        Ok((used.copied, used.left, used.lose))
    }

    /// Waits until a reader that has all asks whether it is of the step, or the window has ended; whether one asks.
    /// For a thread of its own: the interpreter's lock is released.
    fn wait_asked(&self, py: Python<'_>) -> bool {
        py.detach(|| self.lease.wait_asked())
    }

    /// The readers that ask so, a bit each.
    #[getter]
    fn asking(&self) -> u64 {
        self.lease.memory().asking() & !self.lease.memory().vouched()
    }

    /// Readers that were validated, a bit each.
    #[getter]
    fn vouched(&self) -> u64 {
        self.lease.memory().vouched()
    }

    /// Says to these, which asked before it was found that nothing had changed, that what they have is of the step.
    fn vouch(&self, readers: u64) {
        self.lease.memory().vouch(readers);
    }

    /// Closes it, for the tensors may have changed already.
    fn tear(&self) {
        let mut closing = Closing::new(self.pieces.len(), LeaseOutcome::Invalidated);
        while self.look(&mut closing).is_some() {}
    }
}

impl Window {
    /// The next piece that somebody lacks, and who; `None` when the window is closed.
    fn look(&self, closing: &mut Closing) -> Option<(usize, u64)> {
        let memory = self.lease.memory();
        let early = self.early.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match closing.next(&memory) {
                Close::Again => {}
                // What lies there now is of a later step.
                Close::Lacking { piece, .. } if early.closed[piece] => {}
                Close::Lacking { piece, readers } => return Some((piece, readers)),
                Close::Done => return None,
            }
        }
    }

    fn copy_aside(&self, mut closing: Closing, first: (usize, u64), aside: CallerMemory, mut used: Aside, deadline: Instant) -> Aside {
        let mut lacking = Some(first);
        while let Some((piece, readers)) = lacking {
            if !self.copy_piece(piece, readers, aside, &mut used, deadline) {
                closing.give_up();
            }
            lacking = self.look(&mut closing);
        }
        used
    }

    /// Closes pieces early; gives how many bytes a reader lacks that were not copied.
    fn close_pieces(&self, pieces: &[usize], aside: CallerMemory, deadline: Instant) -> usize {
        let memory = self.lease.memory();
        let mut early = self.early.lock().unwrap_or_else(PoisonError::into_inner);
        let mut used = early.aside;
        // The last first, since readers begin with the first.
        for &piece in pieces.iter().rev() {
            if early.closed[piece] {
                continue;
            }
            early.closed[piece] = true;
            let readers = memory.wanted() & !memory.mark(piece, CLOSED);
            if readers != 0 {
                self.copy_piece(piece, readers, aside, &mut used, deadline);
            }
        }
        early.aside = used;
        // A reader that sees a later write of the program sees the pieces closed.
        atomic::fence(atomic::Ordering::SeqCst);
        used.left
    }

    /// Copies a piece that was closed, and that readers lack, to the copy-on-write buffer; false if there is no room
    /// or time left, or something was left before.
    fn copy_piece(&self, index: usize, readers: u64, aside: CallerMemory, used: &mut Aside, deadline: Instant) -> bool {
        let piece = self.pieces[index];
        if used.left > 0 || used.used + piece.length > aside.length || Instant::now() >= deadline {
            used.left += piece.length;
            used.lose |= readers;
            return false;
        }
        let target = CallerMemory {
            address: aside.address + used.used,
            length: piece.length,
        };
        one_pass::copy(piece, target);
        read_lease::note_copied(&self.lease.memory(), index, used.used as u64);
        used.copied += piece.length;
        used.used += piece.length.next_multiple_of(ALIGNMENT_BYTES);
        true
    }
}

/// A window as one of its readers sees it.
#[pyclass(frozen)]
pub(crate) struct Reading {
    window: read_lease::ReadLease,
    reader: u32,
    tensors: Vec<Lying>,
    /// The memory in which they lie: a descriptor, and the same, if it is mapped.
    arenas: Vec<(i32, Option<Py<Mapped>>)>,
    /// Descriptor of the copy-on-write buffer.
    aside: i32,
}

/// A tensor of a window.
#[derive(Clone, Copy)]
struct Lying {
    /// Its first piece.
    first: usize,
    length: usize,
    arena: usize,
    offset: u64,
}

#[pymethods]
impl Reading {
    /// The window behind a descriptor, of tensors with these lengths, each in an arena from an offset on. All
    /// descriptors stay the caller's, and open as long as anything is read.
    #[new]
    fn new(
        descriptor: i32,
        tensors: Vec<(usize, usize, u64)>,
        reader: u32,
        arenas: Vec<(i32, Option<Py<Mapped>>)>,
        aside: i32,
    ) -> PyResult<Self> {
        if reader >= u64::BITS - 1 {
            return Err(PyValueError::new_err(format!("invalid reader {reader}")));
        }
        let mut pieces = 0_usize;
        let with_first = |(length, arena, offset): (usize, usize, u64)| {
            let first = pieces;
            pieces = pieces.saturating_add(length.div_ceil(PIECE_BYTES));
            Lying {
                first,
                length,
                arena,
                offset,
            }
        };
        let tensors = tensors.into_iter().map(with_first).collect();
        let window = read_lease::ReadLease::open(borrowed(descriptor)?.try_clone_to_owned()?, pieces)?;
        Ok(Self {
            window,
            reader,
            tensors,
            arenas,
            aside,
        })
    }

    /// State of the lease: `open`, `kept`, `dropped` (over budget), `torn` (invalidated) or `abandoned` (owner lost).
    #[getter]
    fn outcome(&self) -> &'static str {
        match self.window.memory().outcome() {
            LeaseOutcome::Open => "open",
            LeaseOutcome::Kept => "kept",
            LeaseOutcome::OverBudget => "dropped",
            LeaseOutcome::Invalidated => "torn",
            LeaseOutcome::OwnerLost => "abandoned",
        }
    }

    /// Asks the source whether all that was read is of the step.
    fn ask(&self) {
        ConfirmationWait::new(self.reader).ask(&self.window.memory());
    }

    /// True if the bytes read are of the step, false if they may not be; `None` until the source has confirmed.
    #[getter]
    fn stands(&self) -> Option<bool> {
        let mut waiting = ConfirmationWait::new(self.reader);
        loop {
            match waiting.next(&self.window.memory()) {
                Confirmation::Again => {}
                Confirmation::NotYet => return None,
                Confirmation::OfTheStep => return Some(true),
                Confirmation::Lost(_) => return Some(false),
            }
        }
    }

    /// Reads tensors by number, each to an address, from the job's memory or the copy-on-write buffer; gives their
    /// digests, 16 bytes each. Where an arena is mapped, from there. Else it is read, not mapped: whoever else has it
    /// can't take memory away from under this process. The interpreter's lock is released seldom.
    fn read<'py>(&self, py: Python<'py>, wanted: Vec<(usize, usize)>, wait_s: f64) -> PyResult<Bound<'py, PyBytes>> {
        let (aside, wait) = (borrowed(self.aside)?, duration(wait_s)?);
        let mapped = |(_, mapped): &(i32, Option<Py<Mapped>>)| mapped.as_ref().and_then(|mapped| mapped.get().file());
        let mapped: Vec<_> = self.arenas.iter().map(mapped).collect();
        let tensors = wanted
            .into_iter()
            .map(|(number, address)| self.tensor(number, address, &mapped, aside));
        let mut way = Way {
            reader: self.reader,
            tensors: tensors.collect::<PyResult<_>>()?,
            at: 0,
            piece: 0,
            now: None,
            found: Vec::new(),
        };
        let mut waits_since = None;
        loop {
            match py.detach(|| way.read(&self.window.memory()))? {
                ReadProgress::Whole => return Ok(PyBytes::new(py, &way.found)),
                ReadProgress::Lost(outcome) => return Err(PyConnectionAbortedError::new_err(read_lease::why_lost(outcome))),
                ReadProgress::Some => {
                    waits_since = None;
                    py.check_signals()?;
                }
                ReadProgress::Waits if waits_since.get_or_insert_with(Instant::now).elapsed() > wait => {
                    return Err(PyTimeoutError::new_err(
                        "the job that is forked stands still in the middle of a step",
                    ));
                }
                ReadProgress::Waits => {
                    py.check_signals()?;
                    py.detach(|| std::thread::sleep(LOOK_EVERY));
                }
            }
        }
    }
}

impl Reading {
    /// One that is to be read to an address.
    fn tensor<'a>(
        &self,
        number: usize,
        address: usize,
        mapped: &[Option<Arc<SharedFile>>],
        aside: BorrowedFd<'a>,
    ) -> PyResult<LeasedTensor<'a>> {
        let lying = self.tensors.get(number);
        let lying = *lying.ok_or_else(|| PyValueError::new_err(format!("there is no tensor {number}")))?;
        let (Some((file, _)), Some(mapped)) = (self.arenas.get(lying.arena), mapped.get(lying.arena)) else {
            return Err(PyValueError::new_err(format!("there is no arena {}", lying.arena)));
        };
        Ok(LeasedTensor {
            target: CallerMemory::new(address, lying.length)?,
            first: lying.first,
            file: borrowed(*file)?,
            offset: lying.offset,
            mapped: mapped.as_deref().and_then(|file| mapped::part(file, lying.offset, lying.length)),
            aside,
        })
    }
}

/// Source and destination of a tensor's bytes.
#[derive(Clone, Copy)]
struct LeasedTensor<'a> {
    target: CallerMemory,
    /// The number of its first piece.
    first: usize,
    file: BorrowedFd<'a>,
    offset: u64,
    /// Mapped memory of the tensor, if any; the creator keeps it mapped.
    mapped: Option<CallerMemory>,
    aside: BorrowedFd<'a>,
}

impl<'a> LeasedTensor<'a> {
    /// One of its pieces, of which nothing has come yet; none if it has no more.
    fn piece(&self, index: usize) -> Option<Stretches<'a>> {
        let at = index.checked_mul(PIECE_BYTES).filter(|at| *at < self.target.length)?;
        let part = |of: CallerMemory| CallerMemory {
            address: of.address + at,
            length: PIECE_BYTES.min(of.length - at),
        };
        Some(Stretches {
            file: self.file,
            offset: self.offset.saturating_add(at as u64),
            mapped: self.mapped.map(part),
            aside: self.aside,
            piece: part(self.target),
            had: 0,
        })
    }
}

/// Progress of reading.
struct Way<'a> {
    reader: u32,
    tensors: Vec<LeasedTensor<'a>>,
    /// Number of the tensor that is being read.
    at: usize,
    piece: usize,
    now: Option<(Digest, Option<(Stretches<'a>, PieceReader)>)>,
    /// The digests of those before.
    found: Vec<u8>,
}

impl Way<'_> {
    /// Reads on, as far as that goes without waiting, but no more than signals may wait for.
    fn read(&mut self, words: &impl LeaseWords) -> io::Result<ReadProgress> {
        let mut had = 0;
        while let Some(tensor) = self.tensors.get(self.at) {
            if had >= SIGNALS_EVERY_BYTES {
                return Ok(ReadProgress::Some);
            }
            let (digest, stretches) = self.now.get_or_insert_with(|| (Digest::new(tensor.target.length), None));
            if stretches.is_none() {
                let reader = PieceReader::new(self.reader, tensor.first + self.piece);
                *stretches = tensor.piece(self.piece).map(|piece| (piece, reader));
            }
            let Some((piece, reader)) = stretches else {
                self.found.extend(digest.finish(one_pass::bytes(tensor.target)).to_be_bytes());
                (self.now, self.at, self.piece) = (None, self.at + 1, 0);
                continue;
            };
            match piece.read(reader, words, digest)? {
                ReadProgress::Whole => {
                    had += piece.piece.length;
                    *stretches = None;
                    self.piece += 1;
                }
                other => return Ok(other),
            }
        }
        Ok(ReadProgress::Whole)
    }
}

/// Source, destination and length of the stretches of a piece.
struct Stretches<'a> {
    file: BorrowedFd<'a>,
    offset: u64,
    /// Mapped memory of the piece, if any.
    mapped: Option<CallerMemory>,
    aside: BorrowedFd<'a>,
    piece: CallerMemory,
    had: usize,
}

enum ReadProgress {
    Whole,
    Some,
    Waits,
    Lost(LeaseOutcome),
}

impl Stretches<'_> {
    /// Reads on, as far as that goes without waiting.
    fn read(&mut self, reader: &mut PieceReader, words: &impl LeaseWords, digest: &mut Digest) -> io::Result<ReadProgress> {
        while self.had < self.piece.length {
            let stretch = one_pass::piece(self.piece, self.had);
            // One that does not count is read once more.
            let mut with_it = *digest;
            match reader.next(words) {
                NextRead::InPlace => self.read_in_place(stretch, &mut with_it)?,
                NextRead::Aside(at) => {
                    one_pass::fill(self.aside, at.saturating_add(self.had as u64), stretch)?;
                    with_it.see(one_pass::bytes(stretch));
                }
                NextRead::Again => continue,
                NextRead::Wait => return Ok(ReadProgress::Waits),
                NextRead::Lost(outcome) => return Ok(ReadProgress::Lost(outcome)),
            }
            if reader.counts(words) {
                *digest = with_it;
                self.had += stretch.length;
            }
        }
        reader.done(words);
        Ok(ReadProgress::Whole)
    }

    /// Reads the next stretch in the job's memory. The reader knows afterwards whether it was of the step.
    fn read_in_place(&self, stretch: CallerMemory, digest: &mut Digest) -> io::Result<()> {
        let Some(mapped) = self.mapped else {
            one_pass::fill(self.file, self.offset.saturating_add(self.had as u64), stretch)?;
            digest.see(one_pass::bytes(stretch));
            return Ok(());
        };
        let from = CallerMemory {
            address: mapped.address + self.had,
            length: stretch.length,
        };
        one_pass::copy_next(digest, from, stretch);
        Ok(())
    }
}

/// A tensor's pieces.
fn pieces_of(tensor: CallerMemory) -> impl Iterator<Item = CallerMemory> {
    (0..tensor.length).step_by(PIECE_BYTES).map(move |at| CallerMemory {
        address: tensor.address + at,
        length: PIECE_BYTES.min(tensor.length - at),
    })
}
