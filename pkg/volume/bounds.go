package volume

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The bounds of what one volume's author may ask for. What that comes to in files is
// bounded when they are made, see package payload.
const (
	// MaxAttributesSize is the most bytes that the names and values of one volume's
	// attributes may have together.
	MaxAttributesSize = 64 << 10
	// MaxReferences is how many objects a volume may name, each counted once. A volume is to
	// keep the UID and the resourceVersion of each in an extended attribute, which holds less
	// than 64 KiB: in the order of Spec.Refs, 256 pairs of 60 bytes take a quarter of 60,000
	// bytes. With 170 bytes for the namespace and the name beside each they still fit.
	MaxReferences = 256
	// A shorter spread than minSpread spreads nothing, and a longer one than maxSpread is better a rollout.
	minSpread, maxSpread = time.Second, time.Hour
)

// TooMany returns the error for n of something at a field. detail says how many there may be.
func TooMany(at string, n int, detail string) *field.Error {
	err := field.TooMany(field.NewPath(at), n, 0)
	err.Detail = detail
	return err
}

// CheckReferences refuses a spec that names too many objects.
func (s *Spec) CheckReferences() *field.Error {
	uses := s.first(atUse)
	if len(uses) <= MaxReferences {
		return nil
	}
	return TooMany(uses[MaxReferences].Field, len(uses), fmt.Sprintf("a volume may name at most %d ConfigMaps and Secrets, each counted once; show the others in another volume", MaxReferences))
}
