package publisher

import (
	"time"

	"github.com/refvol/refvol/pkg/binding"
)

// wanted is what the calls want of a volume.
type wanted struct {
	// request is nil for a mounted volume of an earlier process until the request is known.
	request *binding.Request
	// waits means that a publish waits. A volume that is not mounted exists only while a publish waits.
	waits bool
	// going means that an unpublish waits for the unmount. It ends when the volume is unmounted, or when that fails.
	going bool
	// lost means that a publish found no mount, so the worker must examine the target again.
	lost bool
	// measure means that the node is full, so the volume must be measured again.
	measure bool
}

// snapshot is what a reconcile reads of the table when it starts. Later changes make the volume due again.
type snapshot struct {
	wanted
	// changedAt is when the first change came that no reconcile has processed; zero for none.
	changedAt time.Time
}
