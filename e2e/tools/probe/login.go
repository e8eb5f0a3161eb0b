package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// loginInterval is the time between two logins of a client.
	loginInterval = 50 * time.Millisecond
	// loginTimeout bounds one login.
	loginTimeout = 10 * time.Second
	// firstAnswer is how long a client waits for its first answer before it says why there is none.
	firstAnswer = time.Minute
)

// logins counts what the database answered to one user.
type logins struct {
	Accepted int `json:"accepted"`
	Refused  int `json:"refused"`
}

// accounts are what a database knows: the passwords that it accepts of every user, and how often
// each user has logged in.
type accounts struct {
	mu        sync.Mutex
	passwords []string
	users     map[string]logins
}

// database stands for one, until ctx ends. It writes the address that it listens on to out.
// GET /login with a user and a password is a login. PUT /passwords replaces the passwords that it
// accepts, one a line; at first there are none. GET /logins tells each user's logins, in JSON.
func database(ctx context.Context, out io.Writer, address string) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	a := &accounts{users: map[string]logins{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /login", a.login)
	mux.HandleFunc("PUT /passwords", a.change)
	mux.HandleFunc("GET /logins", a.tell)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: loginTimeout}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if _, err := fmt.Fprintln(out, listener.Addr()); err != nil {
		return errors.Join(err, listener.Close())
	}
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (a *accounts) login(w http.ResponseWriter, r *http.Request) {
	user, password, _ := r.BasicAuth()
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.users[user]
	if slices.Contains(a.passwords, password) {
		l.Accepted++
	} else {
		l.Refused++
		w.WriteHeader(http.StatusUnauthorized)
	}
	a.users[user] = l
}

func (a *accounts) change(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.passwords = strings.Fields(string(body))
}

func (a *accounts) tell(w http.ResponseWriter, _ *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	// An error is one of the connection, which the other end sees too.
	_ = json.NewEncoder(w).Encode(a.users)
}

// failure is what a client writes of a login that failed.
type failure struct {
	// Logins counts the client's logins until then, and Failed those that failed.
	Logins int    `json:"logins"`
	Failed int    `json:"failed"`
	Reason string `json:"reason"`
}

// client logs in to a database again and again until ctx ends, as the host's name, each time with
// the password that the file has at that moment. It writes each login that fails to out, in JSON and
// without the password. It begins to count with the first answer: before that the database may not
// be reachable yet.
func client(ctx context.Context, out io.Writer, url, file string) error {
	user, err := os.Hostname()
	if err != nil {
		return err
	}
	ticker := time.NewTicker(loginInterval)
	defer ticker.Stop()
	var f failure
	late := time.After(firstAnswer)
	for {
		code, err := login(ctx, url, user, file)
		if ctx.Err() != nil {
			return nil
		}
		select {
		case <-late:
			if code == 0 && f.Logins == 0 {
				if err := answer(out)(failure{Reason: fmt.Sprintf("no answer yet: %v", err)}, nil); err != nil {
					return err
				}
			}
		default:
		}
		if err == nil && code != http.StatusOK {
			err = errors.New(http.StatusText(code))
		}
		if code != 0 || f.Logins > 0 {
			f.Logins++
			if err != nil {
				f.Failed++
				f.Reason = err.Error()
				if err := answer(out)(f, nil); err != nil {
					return err
				}
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// login reads the password, logs in once and returns the database's answer, or 0 if there is none.
// Whoever gives another answer is not the database: the next login is on another connection.
func login(ctx context.Context, url, user, file string) (code int, err error) {
	ctx, cancel := context.WithTimeout(ctx, loginTimeout)
	defer cancel()
	password, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/login", http.NoBody)
	if err != nil {
		return 0, err
	}
	request.SetBasicAuth(user, string(password))
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	if err := response.Body.Close(); err != nil {
		return 0, err
	}
	if response.StatusCode != http.StatusOK && response.StatusCode != http.StatusUnauthorized {
		http.DefaultClient.CloseIdleConnections()
		return 0, fmt.Errorf("%s is no database: %s", url, response.Status)
	}
	return response.StatusCode, nil
}
