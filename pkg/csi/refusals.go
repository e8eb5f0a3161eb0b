package csi

import (
	"maps"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/refvol/refvol/pkg/status"
	"github.com/refvol/refvol/pkg/volume"
)

const (
	// refusalTime is how long a failed publish is told, if the kubelet does not try again.
	refusalTime = 10 * time.Minute
	// maxRefusals bounds how many are told.
	maxRefusals = 256
)

// refusals are the volumes whose last publish failed. It is safe for concurrent use.
type refusals struct {
	mu  sync.Mutex
	all map[string]status.Refusal
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
	id, code := shorten(request.GetVolumeId()), grpcstatus.Code(err)
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
		r.all[id] = status.Refusal{
			VolumeID: id, Name: shorten(path.Base(path.Dir(request.GetTargetPath()))),
			Pod:  status.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)},
			Code: code.String(), Message: grpcstatus.Convert(err).Message(), At: time.Now().UTC(),
		}
	}
}

// forget drops what is too old. The kubelet never unpublishes some volumes whose publish failed. The caller holds mu.
func (r *refusals) forget() {
	maps.DeleteFunc(r.all, func(_ string, refusal status.Refusal) bool { return time.Since(refusal.At) > refusalTime })
}

// Refused returns the volumes whose last publish failed in the last ten minutes, in no order. It is safe for concurrent use.
func (s *Server) Refused() []status.Refusal {
	s.refusals.mu.Lock()
	defer s.refusals.mu.Unlock()
	s.refusals.forget()
	return slices.Collect(maps.Values(s.refusals.all))
}
