//! Finds the preload library's symbol in a loaded object, by the hash table that the linker made (`DT_GNU_HASH`).

use core::ffi::{c_char, c_long};

use forebay_contract::libraries::{DynamicEntry, HOOKS_SYMBOL, HooksCell, LinkMap};

const DT_NULL: c_long = 0;
const DT_STRTAB: c_long = 5;
const DT_SYMTAB: c_long = 6;
const DT_GNU_HASH: c_long = 0x6FFF_FEF5;

/// Symbol of an object (`Elf64_Sym`).
#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: usize,
    size: usize,
}

/// Head of the hash table. Behind it: the Bloom filter of words, the buckets, and the chains of hashes.
#[repr(C)]
struct HashHead {
    buckets: u32,
    /// Number of symbols before the first one that has a hash.
    first: u32,
    filter_words: u32,
    filter_shift: u32,
}

/// Returns the hooks' cell in an object, if it has one.
///
/// # Safety
/// A record of the loader, whose object is mapped.
pub(crate) unsafe fn hooks_of(map: *const LinkMap) -> Option<*const HooksCell> {
    // SAFETY: as the caller says.
    let map = unsafe { map.as_ref() }?;
    // SAFETY: as above; a symbol table has a hash table and strings.
    unsafe {
        let hashes: *const HashHead = address(map, DT_GNU_HASH)?;
        let symbols: *const Symbol = address(map, DT_SYMTAB)?;
        let strings: *const c_char = address(map, DT_STRTAB)?;
        let symbol = find(hashes, symbols, strings)?;
        Some(core::ptr::with_exposed_provenance(map.base.wrapping_add((*symbol).value)))
    }
}

/// Returns the address in an entry of the dynamic section.
///
/// # Safety
/// The object is mapped.
unsafe fn address<T>(map: &LinkMap, tag: c_long) -> Option<*const T> {
    let mut entry: *const DynamicEntry = map.dynamic;
    if entry.is_null() {
        return None;
    }
    loop {
        // SAFETY: the section ends with DT_NULL.
        let DynamicEntry { tag: of, value } = *unsafe { &*entry };
        if of == DT_NULL {
            return None;
        }
        if of == tag {
            // The loader adds the base to addresses of most objects, but not of those whose section is read-only.
            let at = if value < map.base { value.wrapping_add(map.base) } else { value };
            return Some(core::ptr::with_exposed_provenance(at));
        }
        // SAFETY: as above.
        entry = unsafe { entry.add(1) };
    }
}

/// Returns the symbol of the hooks.
///
/// # Safety
/// The tables of one object.
unsafe fn find(hashes: *const HashHead, symbols: *const Symbol, strings: *const c_char) -> Option<*const Symbol> {
    let hash = hash_of_hooks();
    // SAFETY: the layout of the table, as `HashHead` says; each index is below a length that the table gives, and a
    // chain ends with an odd hash.
    unsafe {
        let head = &*hashes;
        if head.buckets == 0 || head.filter_words == 0 {
            return None;
        }
        let filter: *const usize = hashes.add(1).cast();
        let word = *filter.add((hash / usize::BITS % head.filter_words) as usize);
        let bits = 1 << (hash % usize::BITS) | 1 << ((hash >> (head.filter_shift & 31)) % usize::BITS);
        if word & bits != bits {
            return None;
        }
        let buckets: *const u32 = filter.add(head.filter_words as usize).cast();
        let mut index = *buckets.add((hash % head.buckets) as usize);
        if index < head.first {
            return None;
        }
        let chains = buckets.add(head.buckets as usize);
        loop {
            let of = *chains.add((index - head.first) as usize);
            let symbol = symbols.add(index as usize);
            if of | 1 == hash | 1 && is_hooks(strings.add((*symbol).name as usize)) {
                return Some(symbol);
            }
            if of & 1 == 1 {
                return None;
            }
            index += 1;
        }
    }
}

/// Returns the hash of the hooks' name.
const fn hash_of_hooks() -> u32 {
    let mut hash: u32 = 5381;
    let mut rest = HOOKS_SYMBOL.to_bytes();
    while let [byte, then @ ..] = rest {
        hash = hash.wrapping_mul(33).wrapping_add(*byte as u32);
        rest = then;
    }
    hash
}

/// Returns whether a string is the hooks' name.
///
/// # Safety
/// A string with its NUL.
unsafe fn is_hooks(mut text: *const c_char) -> bool {
    for byte in HOOKS_SYMBOL.to_bytes_with_nul() {
        // SAFETY: up to the first difference, at most the NUL.
        if unsafe { *text } as u8 != *byte {
            return false;
        }
        // SAFETY: as above.
        text = unsafe { text.add(1) };
    }
    true
}
