package main

import (
	"context"
	"errors"
	"time"
)

// act performs the configured action. It returns an exitError if the action is to end this process.
func act(ctx context.Context, o *options) error {
	if o.url != "" {
		return request(ctx, o)
	}
	if o.signal != 0 {
		processes, err := sendSignal(o)
		switch {
		case o.exitCode != 0 && errors.Is(err, errNone): // the process has ended by itself
		case o.exitCode == 0 || err != nil:
			return err
		default:
			_ = waitForEnd(ctx, processes, o.grace) // the restart ends those that are left
		}
	}
	if ctx.Err() != nil { // the pod ends
		return ctx.Err()
	}
	return &exitError{o.exitCode}
}

// pause waits for d, or until ctx ends.
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
