//! Addresses, types and sizes of many tensors at once, by the C interface that frameworks offer for that (DLPack 1.2,
//! `DLPackExchangeAPI`).

use std::{
    ffi::{c_int, c_void},
    ptr, slice,
};

use pyo3::{
    PyTraverseError, PyVisit,
    exceptions::PyBufferError,
    prelude::*,
    types::{PyCapsule, PyList, PyWeakrefMethods, PyWeakrefReference},
};

const NAME: &std::ffi::CStr = c"dlpack_exchange_api";
/// Within a major version what is known of the structures below stays.
const MAJOR: u32 = 1;
/// Element type of complex numbers, whose conjugate bit DLPack does not describe.
const COMPLEX: u8 = 5;
const DIMENSIONS_MAX: usize = 64;

/// The struct `DLPackExchangeAPIHeader` of dlpack.h.
#[repr(C)]
struct Header {
    major: u32,
    minor: u32,
    previous: *const Header,
}

/// The struct `DLPackExchangeAPI` of dlpack.h, up to the one function that is called.
#[repr(C)]
struct Exchange {
    header: Header,
    _allocate: *const c_void,
    _managed_from_object: *const c_void,
    _managed_to_object: *const c_void,
    tensor_from_object: Option<unsafe extern "C" fn(*mut c_void, *mut Tensor) -> c_int>,
}

/// `DLTensor`.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: [i32; 2],
    dimensions: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    offset: u64,
}

/// Tensors as they lay when they were looked at. It keeps none of them.
#[pyclass(frozen, name = "Known")]
pub(crate) struct KnownTensors {
    exchange: Py<PyCapsule>,
    alive: Vec<Py<PyWeakrefReference>>,
    /// Facts from which types, layouts and addresses follow: these are unchanged as long as the facts are.
    facts: Vec<u8>,
}

#[pymethods]
impl KnownTensors {
    /// Records tensors of the framework to which `exchange` belongs.
    ///
    /// # Errors
    ///
    /// `BufferError`: a tensor can't be described; or an error that the framework raises.
    #[staticmethod]
    fn of(exchange: &Bound<'_, PyCapsule>, tensors: &Bound<'_, PyList>) -> PyResult<Self> {
        let look_up = look_up(exchange)?;
        let mut facts = Vec::with_capacity(tensors.len() * 64);
        let mut alive = Vec::with_capacity(tensors.len());
        for tensor in tensors.iter() {
            note(&tensor, &look_up, &mut facts)?;
            alive.push(PyWeakrefReference::new(&tensor)?.unbind());
        }
        Ok(Self {
            exchange: exchange.clone().unbind(),
            alive,
            facts,
        })
    }

    /// The tensors, if all are still there and lie as they lay.
    fn again<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyList>>> {
        let look_up = look_up(self.exchange.bind(py))?;
        let mut left = self.facts.as_slice();
        let mut tensors = Vec::with_capacity(self.alive.len());
        let mut facts = Vec::with_capacity(128);
        for alive in &self.alive {
            let Some(tensor) = alive.bind(py).upgrade() else { return Ok(None) };
            facts.clear();
            // Of what it has become nothing may be told.
            if note(&tensor, &look_up, &mut facts).is_err() {
                return Ok(None);
            }
            let Some(rest) = left.strip_prefix(facts.as_slice()) else {
                return Ok(None);
            };
            left = rest;
            tensors.push(tensor);
        }
        PyList::new(py, tensors).map(Some)
    }

    /// Visits the objects behind weak references, which may keep this object alive.
    #[expect(clippy::needless_pass_by_value, reason = "the signature is the interpreter's")]
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.alive.iter().try_for_each(|weak| visit.call(weak))?;
        visit.call(&self.exchange)
    }
}

/// Appends the facts from which a tensor's type, layout and address follow.
fn note(tensor: &Bound<'_, PyAny>, look_up: impl Fn(&Bound<'_, PyAny>) -> PyResult<Tensor>, facts: &mut Vec<u8>) -> PyResult<()> {
    let found = look_up(tensor)?;
    let dimensions = usize::try_from(found.dimensions).ok().filter(|count| *count <= DIMENSIONS_MAX);
    let (Some(dimensions), false) = (dimensions, found.code == COMPLEX) else {
        return Err(PyBufferError::new_err("nothing can be told of where such a tensor lies"));
    };
    let address = (found.data as usize).wrapping_add(usize::try_from(found.offset).unwrap_or(0));
    facts.extend((tensor.get_type_ptr() as usize).to_ne_bytes());
    facts.extend(address.to_ne_bytes());
    facts.extend(found.device.into_iter().flat_map(i32::to_ne_bytes));
    facts.extend([found.code, found.bits]);
    facts.extend(found.lanes.to_ne_bytes());
    facts.extend(found.dimensions.to_ne_bytes());
    for sizes in [found.shape, found.strides] {
        if dimensions > 0 && sizes.is_null() {
            return Err(PyBufferError::new_err("a tensor without strides"));
        }
        let sizes = match dimensions {
            0 => &[],
            // SAFETY: as many numbers as there are dimensions, which belong to the tensor, and it is held here.
            _ => unsafe { slice::from_raw_parts(sizes, dimensions) },
        };
        facts.extend(sizes.iter().flat_map(|size| size.to_ne_bytes()));
    }
    Ok(())
}

/// The framework's function.
fn look_up<'a>(exchange: &'a Bound<'_, PyCapsule>) -> PyResult<impl Fn(&Bound<'_, PyAny>) -> PyResult<Tensor> + 'a> {
    let mut header = exchange.pointer_checked(Some(NAME))?.as_ptr().cast_const().cast::<Header>();
    // SAFETY: a capsule of this name holds such a structure, which stays as long as the framework does; one of an
    // older version may follow it.
    while let Some(known) = unsafe { header.as_ref() }.filter(|known| known.major != MAJOR) {
        header = known.previous;
    }
    // SAFETY: as above; of this major version it begins so.
    let function = unsafe { header.cast::<Exchange>().as_ref() }.and_then(|exchange| exchange.tensor_from_object);
    let function = function.ok_or_else(|| PyBufferError::new_err("the framework offers no DLPack of a version that is known"))?;
    Ok(move |object: &Bound<'_, PyAny>| {
        let mut tensor = Tensor {
            data: ptr::null_mut(),
            device: [0, 0],
            dimensions: 0,
            code: 0,
            bits: 0,
            lanes: 0,
            shape: ptr::null(),
            strides: ptr::null(),
            offset: 0,
        };
        // SAFETY: the interpreter's lock is held, the object is one of the framework's tensors, and there is room for
        // what is written.
        let failed = unsafe { function(object.as_ptr().cast::<c_void>(), &raw mut tensor) } != 0;
        if failed {
            return Err(PyErr::take(object.py()).unwrap_or_else(|| PyBufferError::new_err("the framework tells nothing of a tensor")));
        }
        Ok(tensor)
    })
}
