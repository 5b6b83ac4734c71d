//! The operation `ForebayFinal`: resource `handle`, value `value`, number `token`. It has no result. The handle orders
//! it behind the writes to its variable: operations without one are chained to each other in the order of the program,
//! which is the opposite of the order in which gradients come.

use std::{
    collections::BTreeMap,
    ffi::{CStr, c_void},
    ptr,
    sync::{Mutex, OnceLock, PoisonError, Weak},
};

use crate::{
    api::{self, Api, Construction, Context, Held, Missing, Outcome, ShapeContext, Status},
    early::Watch,
};

/// Name of the operation.
pub const OP: &CStr = c"ForebayFinal";
const TOKEN: &CStr = c"token";
const VALUE: i32 = 1;

/// Watches by their numbers.
static WATCHES: Mutex<BTreeMap<u32, Weak<Watch>>> = Mutex::new(BTreeMap::new());

/// Adds the operation to this process's TensorFlow, once.
///
/// # Errors
/// TensorFlow is not loaded, lacks a function, or refuses the operation.
pub fn register(library: &CStr) -> Result<(), Missing> {
    static DONE: OnceLock<Result<(), Missing>> = OnceLock::new();
    DONE.get_or_init(|| declare(api::load(library)?)).clone()
}

fn declare(api: &'static Api) -> Result<(), Missing> {
    let outcome = Outcome::new(api);
    // SAFETY: the builders are made here, and registering takes them over; all strings live for ever.
    unsafe {
        let op = (api.new_op)(OP.as_ptr());
        (api.add_attribute)(op, c"T: type".as_ptr());
        (api.add_attribute)(op, c"token: int".as_ptr());
        (api.add_input)(op, c"handle: resource".as_ptr());
        (api.add_input)(op, c"value: T".as_ptr());
        (api.set_stateful)(op, true);
        (api.set_shapes)(op, no_shapes);
        (api.register_op)(op, outcome.place());
        outcome.check()?;
        let kernel = (api.new_kernel)(OP.as_ptr(), c"CPU".as_ptr(), create, compute, delete);
        (api.register_kernel)(OP.as_ptr(), kernel, outcome.place());
    }
    outcome.check()
}

/// Makes a watch's number known to operations.
pub(crate) fn add(number: u32, watch: Weak<Watch>) {
    let mut watches = WATCHES.lock().unwrap_or_else(PoisonError::into_inner);
    watches.retain(|_, watch| watch.strong_count() > 0);
    watches.insert(number, watch);
}

/// A kernel: the operation at its place in a graph.
struct Mark {
    watch: Weak<Watch>,
    number: u32,
}

unsafe extern "C" fn no_shapes(_: *mut ShapeContext, _: *mut Status) {}

unsafe extern "C" fn create(construction: *mut Construction) -> *mut c_void {
    let mut mark = Mark {
        watch: Weak::new(),
        number: 0,
    };
    if let Some(api) = api::api() {
        let (outcome, mut token) = (Outcome::new(api), 0);
        // SAFETY: TensorFlow's own object; the others are places of our own.
        unsafe { (api.attribute)(construction, TOKEN.as_ptr(), &raw mut token, outcome.place()) };
        if outcome.is_ok() {
            let watches = WATCHES.lock().unwrap_or_else(PoisonError::into_inner);
            mark.watch = watches.get(&((token >> 32) as u32)).cloned().unwrap_or_default();
            mark.number = token as u32;
        }
    }
    Box::into_raw(Box::new(mark)).cast()
}

unsafe extern "C" fn compute(kernel: *mut c_void, context: *mut Context) {
    // SAFETY: what `create` has made; TensorFlow deletes it after its last use.
    let mark = unsafe { &*kernel.cast::<Mark>() };
    let Some(watch) = mark.watch.upgrade() else { return };
    // Most steps are not armed.
    let (Some(early), Some(api)) = (watch.armed(), api::api()) else {
        return;
    };
    if early.is_final(mark.number)
        // SAFETY: TensorFlow's own object.
        && let Some(held) = unsafe { Held::input(api, context, VALUE) }
    {
        early.add(mark.number, held);
    }
}

unsafe extern "C" fn delete(kernel: *mut c_void) {
    if !ptr::eq(kernel, ptr::null_mut()) {
        // SAFETY: what `create` has made, deleted once.
        drop(unsafe { Box::from_raw(kernel.cast::<Mark>()) });
    }
}
