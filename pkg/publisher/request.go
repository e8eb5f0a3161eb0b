package publisher

import (
	"maps"
	"time"

	"github.com/refvol/refvol/pkg/volume"
)

// Request asks for a volume to be published.
type Request struct {
	VolumeID string
	// Target is the absolute path at which the volume becomes visible.
	Target string
	// Pod is the pod that the volume is for. PodErr says why the request does not name one. Only a
	// mounted volume takes a request with a PodErr.
	Pod    volume.Pod
	PodErr error
	// Derived says that the request was derived from the pod's spec, by the pod's UID: the
	// pod is who it claims to be, and there is no token yet.
	Derived bool
	// Token is the pod's own. TokenErr says why the request has none. Where objects are read
	// with pods' tokens, only a mounted volume takes a request with a TokenErr.
	Token    volume.Token
	TokenErr error
	// Attributes are what the pod's author wrote, without the kubelet's own keys.
	Attributes map[string]string
	ReadOnly   bool
	// FSGroup is the group of the volume, nil for none.
	FSGroup *int64

	// came is when the publish began.
	came time.Time
}

// differs names what another request would change of a mounted volume, or returns "". It doesn't
// compare what the kubelet may change between two calls for one pod.
func (r *Request) differs(other *Request) string {
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

// renewed returns the request by which a mounted volume lives on after another one, which does not differ. What that one
// lacks stays.
func (r *Request) renewed(other *Request) *Request {
	next := *other
	if other.PodErr != nil {
		next.Pod, next.PodErr = r.Pod, r.PodErr
	}
	if other.TokenErr != nil || other.Token.Reveal() == "" {
		next.Token, next.TokenErr = r.Token, r.TokenErr
	}
	return &next
}

// isLike says whether another request asks for the same files.
func (r *Request) isLike(other *Request) bool {
	sameGroup := (r.FSGroup == nil) == (other.FSGroup == nil) && (r.FSGroup == nil || *r.FSGroup == *other.FSGroup)
	return r.Pod == other.Pod && r.differs(other) == "" && sameGroup && r.PodErr == nil && other.PodErr == nil
}

// validate refuses a request that nothing can be published for, whatever the spec is.
func (r *Request) validate(opts *Options) error {
	switch {
	case r.PodErr != nil:
		return fail(ReasonInvalid, "%w", r.PodErr)
	case !r.ReadOnly:
		return fail(ReasonInvalid, "readOnly: Required value: must be true (set csi.readOnly: true in the pod's volume)")
	case r.TokenErr != nil && opts.Identity != nil:
		return fail(ReasonInvalid, "%w", r.TokenErr)
	}
	if err := checkTarget(opts.KubeletDir, r.Pod, r.Target); err != nil {
		return fail(ReasonInvalid, "target_path: %w", err)
	}
	return nil
}
