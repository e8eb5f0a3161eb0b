package csi

import (
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
	// refusalTime is how long a failed publish is reported if the kubelet does not retry.
	refusalTime = 10 * time.Minute
	// maxRefusals limits the reported failures. refusalShare is how many of one namespace are kept before those of other namespaces are
	// dropped.
	maxRefusals  = 256
	refusalShare = 8
)

// refusals are the volumes whose last publish failed, oldest failure first. It is safe for concurrent use.
type refusals struct {
	mu  sync.Mutex
	all []status.Refusal
}

// record records the answer to a call.
func (r *refusals) record(req any, err error) {
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
	r.all = slices.DeleteFunc(r.all, func(refusal status.Refusal) bool { return refusal.VolumeID == id })
	if !isPublish || err == nil {
		return
	}
	pod, _ := volume.PodFromContext(publish.GetVolumeContext()) // if that fails, the message says so
	r.all = append(r.all, status.Refusal{
		VolumeID: id, Name: shorten(path.Base(path.Dir(request.GetTargetPath()))),
		Pod:  status.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)},
		Code: code.String(), Message: grpcstatus.Convert(err).Message(), At: time.Now().UTC(),
	})
	r.forget()
	r.dropExcess()
}

// forget drops old failures. For some volumes whose publish failed, the kubelet never calls unpublish. The caller holds mu.
func (r *refusals) forget() {
	r.all = slices.DeleteFunc(r.all, func(refusal status.Refusal) bool { return time.Since(refusal.At) > refusalTime })
}

// dropExcess drops a failure if there are too many: the oldest one of the namespace with the most, so that one tenant cannot hide the
// failures of others. If no namespace has more than its share, the oldest of all is dropped. The newest one always stays. The caller holds
// mu.
func (r *refusals) dropExcess() {
	if len(r.all) <= maxRefusals {
		return
	}
	count := map[string]int{}
	for i := range r.all {
		count[r.all[i].Pod.Namespace]++
	}
	most := 0 // the index of the oldest failure of the namespace with the most
	for i := range r.all {
		if count[r.all[i].Pod.Namespace] > count[r.all[most].Pod.Namespace] {
			most = i
		}
	}
	if count[r.all[most].Pod.Namespace] <= refusalShare {
		most = 0
	}
	r.all = slices.Delete(r.all, most, most+1)
}

// Refused returns the volumes whose last publish failed within the last ten minutes, oldest failure first. It is safe for concurrent use.
func (s *Server) Refused() []status.Refusal {
	s.refusals.mu.Lock()
	defer s.refusals.mu.Unlock()
	s.refusals.forget()
	return slices.Clone(s.refusals.all)
}
