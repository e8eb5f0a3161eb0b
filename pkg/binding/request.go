package binding

import (
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/volume"
)

// Request is a request to publish a volume. It never changes once it is given to a Binding.
type Request struct {
	VolumeID string
	// Target is the absolute path at which the volume becomes visible.
	Target string
	// Pod is the pod that the volume is for. PodErr says why the request does not name one. Only a mounted volume accepts a request with a
	// PodErr.
	Pod    volume.Pod
	PodErr error
	// Derived means that the request was derived from the spec of the pod with this UID. The pod's identity is then proven, and there is no
	// token yet.
	Derived bool
	// Token is the pod's own token. TokenErr says why the request has none. If objects are read with pods' tokens, only a mounted volume
	// accepts a request with a TokenErr.
	Token    volume.Token
	TokenErr error
	// Attributes are what the pod's author wrote, without the kubelet's own keys.
	Attributes map[string]string
	ReadOnly   bool
	// FSGroup is the group of the volume, or nil.
	FSGroup *int64
	// Came is when the publish began. The publisher sets it.
	Came time.Time
}

// Differs names the first difference to another request for a mounted volume, or returns "". It ignores what the kubelet may change between
// two calls for one pod.
func (r *Request) Differs(other *Request) string {
	switch {
	case r.Target != other.Target:
		return "target path"
	case other.PodErr == nil && r.Pod.UID != other.Pod.UID:
		return "pod UID"
	case r.ReadOnly != other.ReadOnly:
		return "readonly"
	case !maps.Equal(r.Attributes, other.Attributes):
		return "volume attributes"
	}
	return ""
}

// Renewed returns the request with which a mounted volume continues after another request that does not differ. What the other request
// lacks is kept.
func (r *Request) Renewed(other *Request) *Request {
	next := *other
	if other.PodErr != nil {
		next.Pod, next.PodErr = r.Pod, r.PodErr
	}
	if other.TokenErr != nil || other.Token.Reveal() == "" {
		next.Token, next.TokenErr = r.Token, r.TokenErr
	}
	return &next
}

// isLike reports whether another request asks for the same files.
func (r *Request) isLike(other *Request) bool {
	sameGroup := (r.FSGroup == nil) == (other.FSGroup == nil) && (r.FSGroup == nil || *r.FSGroup == *other.FSGroup)
	return r.Pod == other.Pod && r.Differs(other) == "" && sameGroup && r.PodErr == nil && other.PodErr == nil
}

// Validate returns an error if nothing can be published for the request, whatever its attributes say.
func (r *Request) Validate(opts *Options) error {
	switch {
	case r.PodErr != nil:
		return failure.New(failure.ReasonInvalid, "%w", r.PodErr)
	case !r.ReadOnly:
		return failure.New(failure.ReasonInvalid, "readOnly: Required value: must be true (set csi.readOnly: true in the pod's volume)")
	case r.TokenErr != nil && opts.Identity != nil:
		return failure.New(failure.ReasonInvalid, "%w", r.TokenErr)
	}
	if err := r.Pod.CheckTarget(opts.KubeletDir, r.Target); err != nil {
		return failure.New(failure.ReasonInvalid, "target_path: %w", err)
	}
	return nil
}

// Place says which volume this is and where. It is constant.
type Place struct {
	// ID is the kubelet's ID of the volume, and Target its absolute path.
	ID, Target string
	// UID is that of the pod, and Name is the volume's name in the pod's spec.
	UID  types.UID
	Name string
	// Since is when this process started with the volume.
	Since time.Time
}
