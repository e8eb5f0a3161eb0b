package writer

import (
	"errors"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/volume"
)

// A file names the objects of its Refs in an extended attribute, a line "kind/namespace/name"
// for each. Whoever may write to the volume may have written that attribute too: what is read
// of it has bounds, and can do no more than to make files of this volume stay or go.
const (
	// refsName follows the prefix of the attribute's name.
	refsName = "refs"
	// maxRefs bounds the attribute, in bytes: it takes memory of the kernel.
	maxRefs = 4096
	// anyRefs stands for more objects than fit: the file goes with any of them.
	anyRefs = "*"
)

// encodeRefs returns the attribute of a file that names refs; "" stands for none.
func encodeRefs(refs []volume.Ref) string {
	if encodedSize(refs) > maxRefs {
		return anyRefs
	}
	var b strings.Builder
	for i := range refs {
		for _, part := range lineOf(&refs[i]) {
			b.WriteString(part)
		}
	}
	return b.String()
}

func lineOf(ref *volume.Ref) [6]string {
	return [...]string{string(ref.Kind), "/", ref.Namespace, "/", ref.Name, "\n"}
}

// encodedSize returns the length of the lines of refs.
func encodedSize(refs []volume.Ref) int {
	n := 0
	for i := range refs {
		for _, part := range lineOf(&refs[i]) {
			n += len(part)
		}
	}
	return n
}

// decodeRefs returns the refs that an attribute names; not ok if it may name any.
func decodeRefs(attribute string) (refs []volume.Ref, ok bool) {
	if len(attribute) > maxRefs {
		return nil, false
	}
	for line := range strings.Lines(attribute) {
		parts := strings.Split(strings.TrimSuffix(line, "\n"), "/")
		if !strings.HasSuffix(line, "\n") || len(parts) != 3 || slices.Contains(parts, "") {
			return nil, false
		}
		ref := volume.Ref{Kind: volume.Kind(parts[0]), Namespace: parts[1], Name: parts[2]}
		if !slices.Contains(volume.Kinds(), ref.Kind) {
			return nil, false
		}
		refs = append(refs, ref)
	}
	return refs, true
}

// namesOf adds to found which of refs an attribute names. One that can't be understood names
// all of them: a file that may show what was revoked must go. That may take too much from a
// volume whose attributes were spoilt, but nothing from any other.
func namesOf(attribute string, refs, found map[volume.Ref]bool) {
	named, ok := decodeRefs(attribute)
	if !ok {
		for ref := range refs {
			found[ref] = true
		}
		return
	}
	for _, ref := range named {
		if refs[ref] {
			found[ref] = true
		}
	}
}

// names reports whether the file names one of refs.
func (e *entry) names(refs map[volume.Ref]bool) bool {
	found := map[volume.Ref]bool{}
	if e.refs != "" {
		namesOf(e.refs, refs, found)
	}
	return len(found) > 0
}

// union returns the attribute of a file that holds parts of what had either attribute.
func union(a, b string) string {
	first, ok := decodeRefs(a)
	second, alsoOK := decodeRefs(b)
	if !ok || !alsoOK {
		return anyRefs
	}
	refs := append(first, second...)
	slices.SortFunc(refs, volume.CompareRefs)
	return encodeRefs(slices.Compact(refs))
}

// readRefs returns the attribute of an open file; anyRefs stands for one that can't be read or
// is too long.
func readRefs(fd int, name string) string {
	var buf [maxRefs]byte
	n, err := retry(func() (int, error) { return unix.Fgetxattr(fd, name, buf[:]) })
	if errors.Is(err, unix.ENODATA) {
		return ""
	}
	if err != nil {
		return anyRefs
	}
	return string(buf[:n])
}
