package publisher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/loglimit"
	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/opened"
	"github.com/refvol/refvol/pkg/volume"
	"github.com/refvol/refvol/pkg/writer"
)

// Mounts creates, proves and removes the mounts of volumes. NewMounts returns the real one. See the methods of mount.Mounter.
type Mounts interface {
	Create(ctx context.Context, params mount.Params) (Mount, error)
	Reopen(ctx context.Context, volumeID, target string) (Mount, error)
	Open(ctx context.Context, volumeID, target string) (*os.Root, Usage, error)
	Check(ctx context.Context, volumeID, target string) error
	Unmount(ctx context.Context, volumeID, target string) error
	List(ctx context.Context) ([]mount.Mounted, error)
}

// Usage is how much of a volume is in use. Sizes are in bytes.
type Usage = mount.Usage

// Mount is a writable handle on one volume's file system.
type Mount interface {
	Root() *os.Root
	IsMountedAt(target string) bool
	Attach(ctx context.Context, target string) error
	// Usage returns what the file system holds, including files that are deleted but still open.
	Usage() (Usage, error)
	Close() error
}

// Writer makes a directory show a tree. *writer.Writer implements it. See its methods.
type Writer interface {
	Write(ctx context.Context, dir *os.Root, tree *volume.Payload) (writer.Result, error)
	Compare(ctx context.Context, dir *os.Root, tree *volume.Payload) (writer.Comparison, error)
	Withdraw(ctx context.Context, dir *os.Root, refused map[volume.Ref]bool, record string) (writer.Result, error)
}

// Observer receives what happens to volumes, for metrics. *metrics.Metrics implements it. Its methods must return at once and must be safe
// for concurrent use.
type Observer interface {
	// RecordWrite is called for each try to write a volume's files: whether the files changed, how many bytes were written, and why it
	// failed.
	RecordWrite(changed bool, bytes int64, err error)
	// Propagated is called with the time from when the process learned about a change until a mounted volume showed it.
	Propagated(took time.Duration)
	// Opened is called with the time from when an object's files came to show their present content until the last one was opened for the
	// first time.
	Opened(took time.Duration)
}

type noObserver struct{}

func (noObserver) RecordWrite(bool, int64, error) {}
func (noObserver) Propagated(time.Duration)       {}
func (noObserver) Opened(time.Duration)           {}

// Options are what a Publisher needs.
type Options struct {
	// Options say what volumes are asked to show, and what they may show.
	binding.Options
	Mounts Mounts
	// NotShared returns why mounts of this process don't reach pods, or nil if they do. While it returns an error, no new volume is made,
	// and mounted volumes continue to be served. It is called for each new volume, from any goroutine. If the function is nil, mounts reach
	// pods.
	NotShared func() error
	// NewWriter returns the writer of one volume. If the function is nil, that is writer.New.
	NewWriter func(writer.Options) Writer
	// AttributePrefix is the prefix of the extended attributes that may be set in a volume. See mount.Mounter.AttributePrefix.
	AttributePrefix string
	// Opens watches who opens files. If it is nil, there are no receipts.
	Opens opened.Watcher
	// NodeName is the name of the Node, for the variables that refer to it.
	NodeName string
	// Observer receives what happens to volumes. It may be nil.
	Observer Observer
	// LogLimit limits what is logged about each pod. If it is nil, there is no limit.
	LogLimit *loglimit.Limiter
	// PublishWait limits how long a publish waits for required objects and keys.
	PublishWait time.Duration
	// MaxVolumeSize limits one volume's files, in bytes. MaxTotalSize limits what the file systems of all volumes hold, including their
	// inodes. The volumes of one pod may hold an eighth of MaxTotalSize, but at least MaxVolumeSize.
	MaxVolumeSize, MaxTotalSize int64
}

func (o *Options) validate() error {
	var errs []error
	if err := o.Options.Validate(); err != nil {
		errs = append(errs, err)
	}
	if o.Mounts == nil {
		errs = append(errs, errors.New("Mounts: Required value"))
	}
	if o.AttributePrefix == "" {
		errs = append(errs, errors.New("AttributePrefix: Required value"))
	}
	if o.NodeName == "" {
		errs = append(errs, errors.New("NodeName: Required value"))
	}
	if o.PublishWait < 0 {
		errs = append(errs, fmt.Errorf("PublishWait: Invalid value: %s: must not be negative", o.PublishWait))
	}
	if o.MaxVolumeSize <= 0 {
		errs = append(errs, fmt.Errorf("MaxVolumeSize: Invalid value: %d: must be positive", o.MaxVolumeSize))
	}
	if o.MaxTotalSize < o.MaxVolumeSize {
		errs = append(errs, fmt.Errorf("MaxTotalSize: Invalid value: %d: must not be less than MaxVolumeSize (%d)", o.MaxTotalSize, o.MaxVolumeSize))
	}
	return errors.Join(errs...)
}
