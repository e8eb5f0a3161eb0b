package main

import (
	"context"
	"errors"
	"time"
)

// act does what the options say. It returns an exitError where the end of this process is the action.
func act(ctx context.Context, o *options) error {
	if o.url != "" {
		return request(ctx, o)
	}
	if o.signal != 0 {
		processes, err := sendSignal(o)
		switch {
		case o.exitCode != 0 && errors.Is(err, errNone): // it has ended by itself
		case o.exitCode == 0 || err != nil:
			return err
		default:
			_ = waitForEnd(ctx, processes, o.grace) // those that are left end by the restart
		}
	}
	if ctx.Err() != nil { // the pod ends
		return ctx.Err()
	}
	return &exitError{o.exitCode}
}

// pause waits, until ctx ends at most.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
