//! Functions of TensorFlow's C interface (`tensorflow/c/kernels.h`, `ops.h`, `tf_tensor.h`, `tf_status.h`), found in
//! the process.

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    mem, ptr,
    sync::OnceLock,
};

use thiserror::Error;

/// A reason why the operation can't be used.
#[derive(Clone, Debug, Error)]
pub enum Missing {
    /// The library is not loaded into this process.
    #[error("{0} is not loaded")]
    Library(String),
    /// The library lacks a function.
    #[error("this TensorFlow has no function {0}")]
    Function(String),
    /// TensorFlow has refused the operation or its kernel.
    #[error("TensorFlow refuses the operation: {0}")]
    Refused(String),
}

/// Opaque structures of TensorFlow's.
macro_rules! opaque {
    ($($name:ident),*) => { $(#[repr(C)] #[derive(Debug)] pub(crate) struct $name { _opaque: [u8; 0] })* };
}
opaque!(Construction, Context, Kernel, OpDefinition, ShapeContext, Status, Tensor);

type Create = unsafe extern "C" fn(*mut Construction) -> *mut c_void;
type Compute = unsafe extern "C" fn(*mut c_void, *mut Context);
type Delete = unsafe extern "C" fn(*mut c_void);
type Shapes = unsafe extern "C" fn(*mut ShapeContext, *mut Status);

/// Declares the functions, and how they are looked up.
macro_rules! functions {
    ($($field:ident = $symbol:literal: fn($($type:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions that are called.
        #[derive(Debug)]
        pub(crate) struct Api { $(pub(crate) $field: unsafe extern "C" fn($($type),*) $(-> $result)?,)* }

        impl Api {
            fn find(symbol: impl Fn(&CStr) -> Result<*mut c_void, Missing>) -> Result<Self, Missing> {
                Ok(Self { $($field: {
                    let address = symbol($symbol)?;
                    // SAFETY: a function of that name has this type in all versions of TensorFlow that have it: the
                    // interface of its C library is kept.
                    unsafe { mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) $(-> $result)?>(address) }
                },)* })
            }
        }
    };
}

functions! {
    new_op = c"TF_NewOpDefinitionBuilder": fn(*const c_char) -> *mut OpDefinition;
    add_input = c"TF_OpDefinitionBuilderAddInput": fn(*mut OpDefinition, *const c_char);
    add_attribute = c"TF_OpDefinitionBuilderAddAttr": fn(*mut OpDefinition, *const c_char);
    set_stateful = c"TF_OpDefinitionBuilderSetIsStateful": fn(*mut OpDefinition, bool);
    set_shapes = c"TF_OpDefinitionBuilderSetShapeInferenceFunction": fn(*mut OpDefinition, Shapes);
    register_op = c"TF_RegisterOpDefinition": fn(*mut OpDefinition, *mut Status);
    new_kernel = c"TF_NewKernelBuilder": fn(*const c_char, *const c_char, Create, Compute, Delete) -> *mut Kernel;
    register_kernel = c"TF_RegisterKernelBuilder": fn(*const c_char, *mut Kernel, *mut Status);
    attribute = c"TF_OpKernelConstruction_GetAttrInt64": fn(*mut Construction, *const c_char, *mut i64, *mut Status);
    input = c"TF_GetInput": fn(*mut Context, c_int, *mut *mut Tensor, *mut Status);
    data = c"TF_TensorData": fn(*const Tensor) -> *mut c_void;
    length = c"TF_TensorByteSize": fn(*const Tensor) -> usize;
    delete_tensor = c"TF_DeleteTensor": fn(*mut Tensor);
    new_status = c"TF_NewStatus": fn() -> *mut Status;
    delete_status = c"TF_DeleteStatus": fn(*mut Status);
    code = c"TF_GetCode": fn(*const Status) -> c_int;
    message = c"TF_Message": fn(*const Status) -> *const c_char;
}

static API: OnceLock<Api> = OnceLock::new();

/// Returns the functions; `None` before [`load`] has found them.
pub(crate) fn api() -> Option<&'static Api> {
    API.get()
}

/// Finds the functions in a library that is loaded already.
pub(crate) fn load(library: &CStr) -> Result<&'static Api, Missing> {
    if let Some(found) = api() {
        return Ok(found);
    }
    // SAFETY: a string; nothing is loaded by it, so that no code of a library runs.
    let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
    if handle.is_null() {
        return Err(Missing::Library(library.to_string_lossy().into_owned()));
    }
    // The handle is kept: while the functions are known, the library stays.
    let found = Api::find(|name| symbol(handle, name))?;
    Ok(API.get_or_init(|| found))
}

fn symbol(library: *mut c_void, name: &CStr) -> Result<*mut c_void, Missing> {
    // SAFETY: a handle from dlopen, and a string.
    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
    if address.is_null() {
        return Err(Missing::Function(name.to_string_lossy().into_owned()));
    }
    Ok(address)
}

/// The result of a call, freed with the object.
pub(crate) struct Outcome(&'static Api, *mut Status);

impl Outcome {
    pub(crate) fn new(api: &'static Api) -> Self {
        // SAFETY: it has no arguments.
        Self(api, unsafe { (api.new_status)() })
    }

    /// Where a function puts it.
    pub(crate) fn place(&self) -> *mut Status {
        self.1
    }

    pub(crate) fn is_ok(&self) -> bool {
        // SAFETY: made by `new`, and not deleted yet.
        unsafe { (self.0.code)(self.1) == 0 }
    }

    /// Returns the error's words, if the call has failed.
    pub(crate) fn check(&self) -> Result<(), Missing> {
        if self.is_ok() {
            return Ok(());
        }
        // SAFETY: as in `is_ok`; the text lives as long as the status.
        let words = unsafe { CStr::from_ptr((self.0.message)(self.1)) };
        Err(Missing::Refused(words.to_string_lossy().into_owned()))
    }
}

impl Drop for Outcome {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and deleted once.
        unsafe { (self.0.delete_status)(self.1) };
    }
}

/// A reference to a tensor's buffer, which TensorFlow does not write to meanwhile.
#[derive(Debug)]
pub(crate) struct Held {
    api: &'static Api,
    tensor: *mut Tensor,
    /// Address of the bytes.
    pub(crate) address: usize,
    /// Number of bytes.
    pub(crate) length: usize,
}

// SAFETY: TensorFlow counts the references to a buffer atomically, and any thread may delete one.
unsafe impl Send for Held {}

impl Held {
    /// Takes a reference to an input of an operation that runs; `None` if there is no such input.
    ///
    /// # Safety
    /// `context` is the one with which TensorFlow has called the kernel.
    pub(crate) unsafe fn input(api: &'static Api, context: *mut Context, number: c_int) -> Option<Self> {
        let outcome = Outcome::new(api);
        let mut tensor = ptr::null_mut();
        // SAFETY: the caller's context; the others are places of our own.
        unsafe { (api.input)(context, number, &raw mut tensor, outcome.place()) };
        if !outcome.is_ok() || tensor.is_null() {
            return None;
        }
        // SAFETY: a tensor that was just given.
        let (address, length) = unsafe { ((api.data)(tensor) as usize, (api.length)(tensor)) };
        Some(Self {
            api,
            tensor,
            address,
            length,
        })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: this object's own reference, deleted once.
        unsafe { (self.api.delete_tensor)(self.tensor) };
    }
}

/// Tensors without TensorFlow.
#[cfg(test)]
pub(crate) mod fake {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Number of deleted references.
    pub(crate) static DELETED: AtomicUsize = AtomicUsize::new(0);

    extern "C" fn delete_tensor(_: *mut Tensor) {
        DELETED.fetch_add(1, Ordering::Relaxed);
    }

    extern "C" fn uncalled() {
        panic!("the tests call no other function");
    }

    /// A reference to bytes.
    pub(crate) fn held(bytes: &'static [u8]) -> Held {
        static API: OnceLock<Api> = OnceLock::new();
        let of = |name: &CStr| -> Result<*mut c_void, Missing> {
            let is_delete = name == c"TF_DeleteTensor";
            Ok(if is_delete {
                delete_tensor as *mut c_void
            } else {
                uncalled as *mut c_void
            })
        };
        Held {
            api: API.get_or_init(|| Api::find(of).unwrap()),
            tensor: ptr::null_mut(),
            address: bytes.as_ptr() as usize,
            length: bytes.len(),
        }
    }
}
