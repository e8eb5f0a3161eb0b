// Package volume is the vocabulary of refvol: what a pod asks for (Spec, parsed
// from the volume attributes), who asks (Pod), what is referenced (Ref), what the
// API server holds (Object) and what a volume shows (Payload).
//
// It owns the syntax of the volume attributes and the validation of paths and
// modes. It is pure: it reads no file, no clock and no network, and it imports no
// other package of this module. It must not know how objects are fetched, written
// or mounted.
package volume
