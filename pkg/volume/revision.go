package volume

import "strings"

// MaxRevision limits a revision, in bytes.
const MaxRevision = 128

// Revision is a value of RevisionAnnotation. It is public, as all that names something.
type Revision string

// IsValid reports whether a revision counts: 1 to 128 bytes of letters, digits and ". _ - / : @ +". Any other one counts as none.
func (r Revision) IsValid() bool {
	return r != "" && len(r) <= MaxRevision && !strings.ContainsFunc(string(r), func(c rune) bool {
		isLetter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		return !isLetter && (c < '0' || '9' < c) && !strings.ContainsRune("._-/:@+", c)
	})
}
