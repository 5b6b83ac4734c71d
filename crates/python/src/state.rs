//! Descriptions of states. Converts types, and reads descriptors; the texts are those of `forebay_state`.

use std::{collections::HashMap, sync::Arc};

use forebay_state::{
    CapturedSection, EntryKind, EntryPlace, InvalidState, KindRow, Manifest, Section, SectionCache, StateHeader, TEXT_BYTES_MAX,
};
use pyo3::{
    exceptions::PyValueError,
    prelude::*,
    types::{PyBytes, PyTuple},
};
use rustix::{fs::fstat, io::pread};

use crate::fork::borrowed;

/// A section as a capture holds it, in the form in which it is written.
#[pyclass(frozen)]
pub(crate) struct StateSection(CapturedSection);

/// Placement, layout and length of an entry, as `EntryKind` of `forebay.clone` has them.
type Kind<'py> = (Bound<'py, PyAny>, (String, Vec<u64>, Vec<u64>, String), u64);
/// Job, rank, epoch and step.
type Header = (String, u64, u64, u64);
/// Framework, rank, ranks, absent kinds, digests and sections.
type WrittenManifest<'py> = (String, u64, u64, Vec<String>, Bound<'py, PyBytes>, Vec<Py<StateSection>>);
/// Like `WrittenManifest`; with each section the number of the known one that has the same entries.
type FoundManifest<'py> = (
    String,
    u64,
    u64,
    Vec<String>,
    Bound<'py, PyBytes>,
    Vec<(Py<StateSection>, Option<usize>)>,
);

#[pymethods]
impl StateSection {
    /// Makes a section from its paths and their kinds. Nothing of it is placed elsewhere.
    #[new]
    fn new(paths: Vec<String>, kinds: &Bound<'_, PyTuple>) -> PyResult<Self> {
        let (mut rows, mut numbers) = (Vec::new(), HashMap::new());
        // By identity first, which takes a third of the time.
        let mut known = HashMap::new();
        let mut kind_of = Vec::with_capacity(paths.len());
        for kind in kinds {
            let identity = kind.as_ptr() as usize;
            let number = if let Some(number) = known.get(&identity) {
                *number
            } else {
                let kind = read_kind(&kind)?;
                let number = *numbers.entry(kind.clone()).or_insert(rows.len());
                if number == rows.len() {
                    rows.push(kind);
                }
                known.insert(identity, number);
                number
            };
            kind_of.push(number);
        }
        let section = Section::new(paths, rows, kind_of).map_err(PyValueError::new_err)?;
        Self::placed(Arc::new(section), Vec::new())
    }

    /// Returns the section with places: the number of an entry, the number of its shared memory, its offset there.
    fn with_places(&self, places: Vec<EntryPlace>) -> PyResult<Self> {
        Self::placed(Arc::clone(self.0.section()), places)
    }

    /// Places of the entries that were not copied.
    #[getter]
    fn places(&self) -> Vec<EntryPlace> {
        self.0.places().to_vec()
    }

    /// Returns paths, kinds, and the number of each path's kind.
    fn columns(&self) -> (Vec<String>, Vec<KindRow<&'static str>>, Vec<usize>) {
        let section = self.0.section();
        let row = |kind: &EntryKind| kind.clone().into();
        (
            section.paths().to_vec(),
            section.kinds().iter().map(row).collect(),
            section.kind_of().to_vec(),
        )
    }
}

impl StateSection {
    fn placed(section: Arc<Section>, places: Vec<EntryPlace>) -> PyResult<Self> {
        CapturedSection::new(section, places).map(Self).map_err(PyValueError::new_err)
    }
}

fn read_kind(kind: &Bound<'_, PyAny>) -> PyResult<EntryKind> {
    let (placement, (dtype, shape, strides, device), length): Kind<'_> = kind.extract()?;
    let placement: String = placement.getattr("value")?.extract()?;
    EntryKind::try_from((placement, dtype, shape, strides, device, length)).map_err(PyValueError::new_err)
}

/// A section and its encoded values.
type FoundSection<'py> = (Py<StateSection>, Bound<'py, PyBytes>);

/// Writes a manifest.
#[pyfunction]
pub(crate) fn write_manifest<'py>(py: Python<'py>, manifest: WrittenManifest<'py>) -> Bound<'py, PyBytes> {
    let mut text = Vec::new();
    to_manifest(manifest).write(&mut text);
    PyBytes::new(py, &text)
}

/// Reads a manifest that is not trusted; `known` sections are reused.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "a list of Python objects is taken by value")]
pub(crate) fn read_manifest<'py>(py: Python<'py>, text: &[u8], known: Vec<Py<StateSection>>) -> PyResult<FoundManifest<'py>> {
    let manifest = Manifest::read(text, &mut cache(&known)).map_err(|error| invalid(&error))?;
    from_manifest(py, manifest, &known)
}

/// Writes the description of a state: job, rank, epoch and step, and a manifest.
#[pyfunction]
pub(crate) fn write_state<'py>(py: Python<'py>, secret: &[u8], header: Header, manifest: WrittenManifest<'py>) -> Bound<'py, PyBytes> {
    let text = forebay_state::write_state(secret, &to_header(header), &to_manifest(manifest));
    PyBytes::new(py, &text)
}

/// Reads the description of a state behind a descriptor, which stays the caller's; `known` sections are reused.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "a list of Python objects is taken by value")]
pub(crate) fn read_state<'py>(
    py: Python<'py>,
    secret: &[u8],
    descriptor: i32,
    known: Vec<Py<StateSection>>,
) -> PyResult<(Header, FoundManifest<'py>)> {
    let text = read_all(descriptor)?;
    let (header, manifest) = forebay_state::read_state(secret, &text, &mut cache(&known)).map_err(|error| invalid(&error))?;
    Ok((from_header(header), from_manifest(py, manifest, &known)?))
}

/// Writes the schema of a coming state: its header, and each section with its values.
#[pyfunction]
pub(crate) fn write_schema<'py>(
    py: Python<'py>,
    secret: &[u8],
    header: Header,
    expected: Vec<(Py<StateSection>, Vec<u8>)>,
) -> Bound<'py, PyBytes> {
    let expected: Vec<_> = expected.into_iter().map(|(held, values)| (held.get().0.clone(), values)).collect();
    PyBytes::new(py, &forebay_state::write_schema(secret, &to_header(header), &expected))
}

/// Reads the schema of a coming state behind a descriptor, which stays the caller's.
#[pyfunction]
pub(crate) fn read_schema<'py>(py: Python<'py>, secret: &[u8], descriptor: i32) -> PyResult<(Header, Vec<FoundSection<'py>>)> {
    let (header, expected) = forebay_state::read_schema(secret, &read_all(descriptor)?).map_err(|error| invalid(&error))?;
    let of_python = |(held, values): (CapturedSection, Vec<u8>)| Ok((Py::new(py, StateSection(held))?, PyBytes::new(py, &values)));
    Ok((from_header(header), expected.into_iter().map(of_python).collect::<PyResult<_>>()?))
}

fn to_header((job, rank, epoch, step): Header) -> StateHeader {
    StateHeader { job, rank, epoch, step }
}

fn from_header(header: StateHeader) -> Header {
    (header.job, header.rank, header.epoch, header.step)
}

fn to_manifest((framework, rank, ranks, absent, digests, sections): WrittenManifest<'_>) -> Manifest {
    Manifest {
        framework,
        rank,
        ranks,
        absent,
        sections: sections.iter().map(|held| held.get().0.clone()).collect(),
        digests: digests.as_bytes().to_vec(),
    }
}

fn from_manifest<'py>(py: Python<'py>, manifest: Manifest, known: &[Py<StateSection>]) -> PyResult<FoundManifest<'py>> {
    let of_python = |held: CapturedSection| {
        let like = known.iter().position(|known| Arc::ptr_eq(known.get().0.section(), held.section()));
        let same = like.map(|like| &known[like]).filter(|known| known.get().0 == held);
        Ok((
            same.map_or_else(|| Py::new(py, StateSection(held)), |known| Ok(known.clone_ref(py)))?,
            like,
        ))
    };
    let digests = PyBytes::new(py, &manifest.digests);
    let sections = manifest.sections.into_iter().map(of_python).collect::<PyResult<_>>()?;
    Ok((
        manifest.framework,
        manifest.rank,
        manifest.ranks,
        manifest.absent,
        digests,
        sections,
    ))
}

fn cache(known: &[Py<StateSection>]) -> SectionCache {
    known.iter().map(|held| Arc::clone(held.get().0.section())).collect()
}

fn invalid(error: &InvalidState) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Reads all of a description.
fn read_all(descriptor: i32) -> PyResult<Vec<u8>> {
    let file = borrowed(descriptor)?;
    let length = usize::try_from(fstat(file).map_err(std::io::Error::from)?.st_size).unwrap_or(usize::MAX);
    if length > TEXT_BYTES_MAX {
        return Err(PyValueError::new_err(format!(
            "the description of the state has {length} bytes; the most is {TEXT_BYTES_MAX}"
        )));
    }
    let mut text = vec![0; length];
    let mut read = 0;
    while read < length {
        match pread(file, &mut text[read..], read as u64).map_err(std::io::Error::from)? {
            0 => break,
            more => read += more,
        }
    }
    text.truncate(read);
    Ok(text)
}
