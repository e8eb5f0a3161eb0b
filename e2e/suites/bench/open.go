package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

const openFiles = 200

// runOpen is B16.
func runOpen(ctx context.Context, l *lab) error {
	if l.bench.short && !harness.IsRoot() {
		return nil // no receipts in a user namespace
	}
	fatal(errors.Join(l.create(ctx, 1, always(before)), l.renew(ctx, before)))
	off, on := l.newOpened(ctx, "off", "--open-receipts=false"), l.newOpened(ctx, "on", "--open-receipts=true")
	prefix := must(harness.AttributePrefix(filepath.Dir(on.file(0))))
	// receipted returns an error unless each file has its receipt.
	receipted := func() error {
		for k := range openFiles {
			if _, err := unix.Getxattr(on.file(k), prefix+"opened", nil); err != nil {
				return fmt.Errorf("the receipt of %s: %w", on.file(k), err)
			}
		}
		return nil
	}
	times := map[string][]float64{}
	for i := range scaled(l, 2, 50) {
		fatal(l.renew(ctx, state(i), off, on))
		fatal(openAll(times, map[string]*opened{"off_first_us": off, "first_us": on}))
		fatal(eventually(ctx, receipted))
		for range 3 { // so that most are of what the processor's caches hold, of either
			fatal(openAll(times, map[string]*opened{"off_us": off, "receipted_us": on}))
		}
	}
	for name, all := range times {
		fatal(l.report.Samples("open."+name, "us", all))
	}
	l.report.Value("open.added_us", "us", l.report.P50("open.receipted_us")-l.report.P50("open.off_us"))
	return nil
}

// renew gives the object new files, and waits until volumes have them.
func (l *lab) renew(ctx context.Context, value string, in ...*opened) error {
	object := configMap(objectName(0), value)
	for k := range openFiles {
		object.Data[fmt.Sprint("file-", k)] = value
	}
	must(l.configMaps().Update(ctx, object, metav1.UpdateOptions{}))
	return eventually(ctx, func() (err error) {
		for _, o := range in {
			err = errors.Join(err, o.node.show([]*harness.Volume{o.volume}, always(value)))
		}
		return err
	})
}

type opened struct {
	node   *node
	volume *harness.Volume
}

func (l *lab) newOpened(ctx context.Context, name string, args ...string) *opened {
	o := &opened{l.newNode(ctx, asPlugin, name, args...), asPlugin.volume(objectName(0))}
	fatal(o.node.Publish(ctx, o.volume))
	return o
}

func (o *opened) file(k int) string {
	return filepath.Join(o.node.Target(o.volume), fmt.Sprint("file-", k))
}

// openAll opens each file of volumes, which take turns, and adds what that took in microseconds.
func openAll(times map[string][]float64, in map[string]*opened) error {
	for k := range openFiles {
		for name, o := range in {
			path := o.file(k)
			begin := time.Now()
			fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return fmt.Errorf("open %s: %w", path, err)
			}
			unix.Close(fd)
			times[name] = append(times[name], float64(time.Since(begin).Nanoseconds())/1e3)
		}
	}
	return nil
}
