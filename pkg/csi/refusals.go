package csi

import (
	"maps"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/refvol/refvol/pkg/volume"
)

const (
	// refusalTime is how long a failed publish is told, if the kubelet does not try again.
	refusalTime = 10 * time.Minute
	// maxRefusals bounds how many are told.
	maxRefusals = 256
)

// Refusal is the last publish of a volume, if that failed. It holds no value of an object.
type Refusal struct {
	VolumeID string
	// Name is that of the volume in the pod's spec.
	Name string
	// Pod is the zero Pod if the request did not tell it.
	Pod  volume.Pod
	Code codes.Code
	Text string
	At   time.Time
}

// refusals are the volumes whose last publish failed. It is safe for concurrent use.
type refusals struct {
	mu  sync.Mutex
	all map[string]Refusal
}

// note takes in the answer to a call.
func (r *refusals) note(req any, err error) {
	request, ok := req.(interface {
		GetVolumeId() string
		GetTargetPath() string
	})
	if !ok {
		return
	}
	publish, isPublish := req.(*csi.NodePublishVolumeRequest)
	id, code := shorten(request.GetVolumeId()), status.Code(err)
	if isPublish && code == codes.Aborted {
		return // another call has the answer
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.all, id)
	if !isPublish || err == nil {
		return
	}
	r.forget()
	if len(r.all) < maxRefusals {
		pod, _ := volume.PodFromContext(publish.GetVolumeContext()) // then the text says so
		r.all[id] = Refusal{
			VolumeID: id, Name: shorten(path.Base(path.Dir(request.GetTargetPath()))), Pod: pod,
			Code: code, Text: status.Convert(err).Message(), At: time.Now(),
		}
	}
}

// forget drops what is too old. The kubelet never unpublishes some volumes whose publish failed. The caller holds mu.
func (r *refusals) forget() {
	maps.DeleteFunc(r.all, func(_ string, refusal Refusal) bool { return time.Since(refusal.At) > refusalTime })
}

// Refused calls yield for each volume whose last publish failed in the last ten minutes, in no order, until yield returns
// false. It is safe for concurrent use.
func (s *Server) Refused(yield func(Refusal) bool) {
	s.refusals.mu.Lock()
	s.refusals.forget()
	lately := slices.Collect(maps.Values(s.refusals.all))
	s.refusals.mu.Unlock()
	for _, refusal := range lately {
		if !yield(refusal) {
			return
		}
	}
}
