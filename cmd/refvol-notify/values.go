package main

import (
	"errors"
	"net"
	"net/url"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// setter stores a flag's value, and reports whether it is valid.
type setter func(value string) bool

// withFix adds to the error of a wrong value what to write instead. The package flag adds the name and the value.
func withFix(set setter, fix string) func(string) error {
	return func(value string) error {
		if !set(value) {
			return errors.New("write " + fix)
		}
		return nil
	}
}

func one(to *string, is func(string) bool) setter {
	return func(value string) bool { *to = value; return is(value) }
}

func each(to *[]string, is func(string) bool) setter {
	return func(value string) bool { *to = append(*to, value); return is(value) }
}

func span(to *time.Duration, most time.Duration) setter {
	return func(value string) bool {
		var err error
		*to, err = time.ParseDuration(value)
		return err == nil && *to >= 0 && *to <= most
	}
}

func exitCode(to *int) setter {
	return func(value string) bool {
		var err error
		*to, err = strconv.Atoi(value)
		return err == nil && *to > statusUsage && *to <= 125
	}
}

func signalNamed(to *syscall.Signal) setter {
	return func(value string) bool {
		*to = unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(value), "SIG"))
		return *to != 0
	}
}

func signalName(s syscall.Signal) string { return strings.TrimPrefix(unix.SignalName(s), "SIG") }

// statusRange is the range of HTTP statuses that mean success.
type statusRange struct{ first, last int }

func statusOf(to *statusRange) setter {
	return func(value string) bool {
		first, last, found := strings.Cut(value, "-")
		if !found {
			last = first
		}
		var firstErr, lastErr error
		to.first, firstErr = strconv.Atoi(first)
		to.last, lastErr = strconv.Atoi(last)
		return firstErr == nil && lastErr == nil && 100 <= to.first && to.first <= to.last && to.last <= 599
	}
}

func isAbsolute(value string) bool { return filepath.IsAbs(value) && filepath.Clean(value) == value }

func isPattern(value string) bool {
	_, err := path.Match(value, "")
	return err == nil && value != "" && value[0] != '/'
}

func isName(value string) bool { return value != "" && !strings.Contains(value, "/") }

func isVariableName(value string) bool {
	return value != "" && !strings.ContainsFunc(value, func(c rune) bool {
		return c != '_' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z')
	})
}

func isMethod(value string) bool {
	return value != "" && strings.Trim(value, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}

func isLoopbackURL(value string) bool {
	u, err := url.Parse(value)
	return err == nil && u.Scheme == "http" && u.User == nil && len(loopback(u.Hostname())) > 0
}

func isAddress(value string) bool {
	_, port, err := net.SplitHostPort(value)
	number, portErr := strconv.ParseUint(port, 10, 16)
	return err == nil && portErr == nil && number > 0
}
