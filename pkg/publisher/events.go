package publisher

import (
	"maps"
	"time"

	"github.com/refvol/refvol/pkg/volume"
)

// Events tells a pod's author what ails the pod's volumes; *events.Recorder is one.
type Events interface {
	// Warn must return at once.
	Warn(pod volume.Pod, reason, message string)
}

// The reasons of events.
const (
	eventRefNotFound        = "RefNotFound"
	eventRefKeyNotFound     = "RefKeyNotFound"
	eventRefForbidden       = "RefForbidden"
	eventRefDeleted         = "RefDeleted"
	eventVolumeUpdateFailed = "VolumeUpdateFailed"
	eventInvalidNames       = "InvalidEnvironmentVariableNames"
)

// noEvents is for who wants none.
type noEvents struct{}

func (noEvents) Warn(volume.Pod, string, string) {}

// failure is what was last told of a volume, and when. It is kept beyond the publish that failed.
type failure struct {
	text string
	at   time.Time
}

// tellAgain is how long after a failure the same one is news again. The kubelet
// tries again every two minutes at most; after that long nobody remembers.
const tellAgain = 10 * time.Minute

// isNews notes what is told of a volume, and says whether that differs from what was told last.
func (p *Publisher) isNews(volumeID, text string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(p.failures, func(_ string, f failure) bool { return now.Sub(f.at) > tellAgain })
	last := p.failures[volumeID]
	p.failures[volumeID] = failure{text, now}
	return last.text != text
}

// forgetFailure makes the next failed publish of a volume news.
func (p *Publisher) forgetFailure(volumeID string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.failures, volumeID)
}
