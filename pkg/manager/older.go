package manager

import (
	"errors"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/refvol/refvol/pkg/volume"
)

// OlderAnswer describes an answer of the API server that is refused because files must not go back to an older state. This lasts if etcd
// was restored from a backup.
type OlderAnswer struct {
	// Object is the object's version in the answer; zero if the object does not exist there.
	Object volume.Version
	// ResourceVersion is the version of the answer: of the object, or of the list that holds it. Known is the newer version that came
	// before.
	ResourceVersion, Known string
}

var errOlder = errors.New("the API server answered with a state that is older than the known one")

// olderError is errOlder with the answer. Its text has no version, so that it is the same for each answer.
type olderError struct{ answer OlderAnswer }

func (*olderError) Error() string { return errOlder.Error() }

func (*olderError) Unwrap() error { return errOlder }

// IsOlder reports whether resourceVersion a is certainly older than b. It returns false if they cannot be compared.
func IsOlder(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}

// refuseOlder returns an error if a state is older than what is known. Both the version of the answer and the version of the object
// count: after a restore that bumped etcd's revision, only the object is older.
func (s *state) refuseOlder(obj *volume.Object, version string) error {
	answered := knownOf(obj)
	switch known := s.notified; {
	case IsOlder(version, s.newest):
		return &olderError{OlderAnswer{Object: answered.Version, ResourceVersion: version, Known: s.newest}}
	case obj != nil && obj.UID == known.UID && IsOlder(obj.ResourceVersion, known.ResourceVersion):
		return &olderError{OlderAnswer{Object: obj.Version, ResourceVersion: obj.ResourceVersion, Known: known.ResourceVersion}}
	}
	return nil
}
