//! Who made this processor: what is faster on it was found out for each.

/// As CPUID has it.
pub const INTEL: &[u8; 12] = b"GenuineIntel";
/// As CPUID has it.
pub const AMD: &[u8; 12] = b"AuthenticAMD";

/// Whether CPUID leaf 0 names this maker.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[cold]
pub fn is_made_by(maker: &[u8; 12]) -> bool {
    #[allow(unused_unsafe, reason = "newer compilers have it as a safe function")]
    // SAFETY: every x86-64 processor has the instruction.
    let leaf = unsafe { core::arch::x86_64::__cpuid(0) };
    [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes).as_flattened() == maker
}

/// Whether CPUID leaf 0 names this maker: there is none.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub fn is_made_by(_maker: &[u8; 12]) -> bool {
    false
}
