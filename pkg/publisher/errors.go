package publisher

import "errors"

var (
	// errBusy refuses a call while another one for the volume is running.
	errBusy = errors.New("another call for this volume is running")
	// errUnpublished ends a publish after which an unpublish came.
	errUnpublished = errors.New("the volume was unpublished meanwhile")
	// errStopping ends a wait when the plugin stops.
	errStopping = errors.New("the plugin is stopping")
	// errPodBusy says that a call waits for another volume of its pod.
	errPodBusy = errors.New("another volume of the pod is being written")
	// errHangs ends a reconcile after reconcileTimeout.
	errHangs = errors.New("changes of the volume's directories take too long; does a container hold delegations on them?")
	// errNobody says that a volume is not mounted because no publish waits for it.
	errNobody = errors.New("nobody waits for the volume any more")
	// errLost says that nothing is written because the volume is not mounted any more.
	errLost = errors.New("the volume is no longer mounted")
)
